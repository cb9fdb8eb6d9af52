;;;; Producers send messages to one actor through a queue; then: what of them stays in memory, where, and why?
;;;;
;;;;     sbcl --dynamic-space-size 4GB --script actor.lisp KEY=VALUE …
;;;;
;;;; then=nothing    the run alone, as the author timed it
;;;; then=remedies   (gc), (gc :gen 2) and (gc :full t), a mark after each
;;;; then=look       a census of the heap, random samples of it, and a search for paths to all those that are messages
;;;; then=repeated   (gc), 20 times
;;;; then=regular    20 nursery collections, as a program has them that allocates what it drops at once
;;;; then=working    the same, but a tenth of what it allocates is kept for some collections
;;;;
;;;; Keys: probe (the path of strandline.lisp), mode (unthrottled, paused, paused-unscaled, bounded), messages (of all
;;;; producers), producers, pause (seconds), bound (messages in the queue), sampled (objects), seed,
;;;; and nursery (bytes allocated between collections; 0 is what SBCL chooses).
;;;;
;;;; Scale: the author sent 16,000,000 messages. With fewer, what else has a size is smaller in proportion: the nursery
;;;; (he had 4 GB of dynamic space, of which SBCL takes 5 %), the 10,000 to 20,000 messages between two pauses and the
;;;; length of these. So there are as many pauses as he had, and as many nurseries are filled: 14. Collections may be
;;;; fewer (`gcs` tells). In paused-unscaled the pauses and what is sent between them are his.
;;;;
;;;; Prints one line, a JSON object; units are in the names. The study compiles it first (build.lisp).
;;;;
;;;; Conservative roots: SBCL takes every word on a thread's stack, and in its registers, that looks like an address for a
;;;; reference. So whatever touches a message (the run, the census, the sampling) does so in a thread of its own, which has
;;;; ended before paths are searched for or collections asked for. Three things would undo that, and did in some runs: a
;;;; thread that was joined is scanned until the kernel has ended it (`until-ended` waits for that); a new thread is given the
;;;; stack of one that has ended, as that left it (`clear-stack` writes zeros to it); and a collection leaves addresses on
;;;; the stack of whichever thread ran it (the same, and `stop-finalizer`).

(defpackage :actor (:use :common-lisp))
(in-package :actor)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (require :sb-concurrency))

(defun argument (key default)
  "The VALUE of KEY=VALUE on the command line: a string, or a number where DEFAULT is one."
  (let* ((start (format nil "~A=" key))
         (found (find-if (lambda (word) (eql (mismatch start word) (length start))) sb-ext:*posix-argv*))
         (text (and found (subseq found (length start)))))
    (cond ((null text) default)
          ((stringp default) text)
          (t (let ((*read-eval* nil)) (read-from-string text))))))

(load (argument "probe" "strandline.lisp"))

(defvar *then* (argument "then" "nothing"))
(defvar *mode* (argument "mode" "unthrottled"))
(defvar *messages* (argument "messages" 300000))
(defvar *producers* (argument "producers" 8))
(defvar *pause* (argument "pause" 0.1))
(defvar *bound* (argument "bound" 1000))
(defvar *scale* (/ *messages* 16000000))
(defvar *nursery* (argument "nursery" (floor (* *scale* 1/20 4 (expt 2 30)))))
(defvar *sampled* (argument "sampled" 2000))
(defvar *seed* (argument "seed" 1))

(declaim (type fixnum *messages* *producers* *bound*))

;;; The actor

(defstruct message
  "What actor libraries put into the queue: the content, what is done with it, and what an answer would need. Of the
seven slots four are never used: they are here so that a message has the author's size on SBCL 2.2.9, 192 bytes with
all that comes with it."
  content handler arguments sender promise time-out cancelled)

(defstruct actor
  (box (sb-concurrency:make-mailbox))
  (handled 0 :type fixnum)
  (longest 0 :type fixnum)
  (lock (sb-thread:make-mutex :name "room"))
  (room (sb-thread:make-waitqueue))
  (waiting nil))

(defun act (actor total)
  "Handles TOTAL messages, one after the other."
  (declare (type fixnum total))
  (let ((box (actor-box actor))
        (half (max 1 (floor *bound* 2))))
    (loop repeat total
          do (let ((length (sb-concurrency:mailbox-count box)))
               (declare (type fixnum length))
               (when (> length (actor-longest actor)) (setf (actor-longest actor) length))
               ;; Only a bounded queue has producers that wait.
               (when (and (< length half) (actor-waiting actor))
                 (sb-thread:with-mutex ((actor-lock actor))
                   (setf (actor-waiting actor) nil)
                   (sb-thread:condition-broadcast (actor-room actor)))))
             (let ((message (sb-concurrency:receive-message box)))
               (apply (the function (message-handler message)) (message-arguments message))))))

(defun send (actor content)
  "As `tell` of an actor library does: a message with a closure to be called on it."
  (flet ((handle (who what)
           (declare (ignore who))
           (when (eq what content) (incf (actor-handled actor)))))
    (sb-concurrency:send-message
     (actor-box actor)
     (make-message :content content :handler #'handle :arguments (list actor content)))))

(defun wait-for-room (actor)
  "Back-pressure: returns when the queue is shorter than its bound."
  (let ((box (actor-box actor)))
    (when (>= (sb-concurrency:mailbox-count box) *bound*)
      (sb-thread:with-mutex ((actor-lock actor))
        ;; Not missed: whoever finds the queue full has said before that it waits, and the actor looks at that once the
        ;; queue is short again. Its broadcast wakes all; those for whom there is still no room say it anew.
        (loop (setf (actor-waiting actor) t)
              (sb-thread:barrier (:memory))
              (when (< (sb-concurrency:mailbox-count box) *bound*) (return))
              (sb-thread:condition-wait (actor-room actor) (actor-lock actor)))))))

(defun produce (actor count state)
  "Sends COUNT messages. Where it pauses, it does so after every 10,000 to 20,000, a number that STATE draws."
  (declare (type fixnum count))
  (let* ((paused (eql 0 (search "paused" *mode*)))
         (scale (if (string= *mode* "paused-unscaled") 1 *scale*))
         (pause (* scale *pause*))
         (bounded (string= *mode* "bounded")))
    (flet ((draw () (max 1 (round (* scale (+ 10000 (random 10001 state)))))))
      (let ((until-pause (draw)))
        (declare (type fixnum until-pause))
        (loop repeat count
              do (when bounded (wait-for-room actor))
                 (send actor :foo)
                 (when (and paused (zerop (decf until-pause)))
                   (sleep pause)
                   (setf until-pause (draw))))))))

(defun clear-stack (&optional (frames 80))
  "Writes zeros to where the frames of calls to come will lie, some 250 kB: a frame has places that nothing is written to, and
finds there what earlier calls left."
  (declare (type fixnum frames) (notinline clear-stack))
  ;; A vector that is larger than a page would not lie on the stack.
  (let ((room (make-array 400 :initial-element 0)))
    (declare (dynamic-extent room))
    (if (plusp frames)
        (+ (the fixnum (svref room 399)) (the fixnum (clear-stack (1- frames))))
        0)))

(defvar *lock* (sb-thread:make-mutex :name "threads"))
(defvar *threads* '() "What the kernel calls those that may touch messages and have not ended, the last first.")

(defun system-call (number first second third)
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "syscall" (function sb-alien:long sb-alien:long sb-alien:long sb-alien:long sb-alien:long))
   number first second third))

(defun start-thread (function &rest arguments)
  "A thread that calls FUNCTION on a stack that holds nothing."
  (sb-thread:make-thread
   (lambda ()
     (let ((thread (system-call #+arm64 178 #-arm64 186 0 0 0))) ; gettid
       (sb-thread:with-mutex (*lock*) (push thread *threads*)))
     (clear-stack)
     (apply function arguments))))

(defun until-ended (&optional running)
  "Returns once the kernel has ended all of them but RUNNING. They were joined, which SBCL calls done a little before: until
then it scans their stacks and registers."
  (loop for thread in (ldiff *threads* running)
        ;; tgkill with no signal fails where there is no such thread.
        do (loop while (zerop (system-call #+arm64 131 #-arm64 234 (sb-unix:unix-getpid) thread 0))
                 do (sleep 0.001)))
  (setf *threads* running))

(defun in-thread (function)
  "What FUNCTION returns, on a stack that is gone afterwards."
  (let ((running *threads*))
    (prog1 (sb-thread:join-thread (start-thread function))
      (until-ended running))))

(defun collect (&rest how)
  "A collection that finds nothing on this stack of what an earlier one left there."
  (clear-stack)
  (apply #'sb-ext:gc how))

(defun stop-finalizer ()
  "Ends the thread in which SBCL runs finalizers: it allocates, so a collection may have run on its stack. Nothing here has any."
  (let ((stop (find-symbol "FINALIZER-THREAD-STOP" :sb-impl)))
    (when (and stop (fboundp stop)) (funcall stop))))

(defun run ()
  "All messages sent and handled; returns how many were handled, and the longest queue that the actor saw."
  (let* ((actor (make-actor))
         (each (floor *messages* *producers*))
         (receiver (start-thread #'act actor (* each *producers*)))
         (senders (loop for i below *producers*
                        for state = (sb-ext:seed-random-state (+ *seed* i))
                        collect (start-thread #'produce actor each state))))
    (mapc #'sb-thread:join-thread senders)
    (sb-thread:join-thread receiver)
    (list (actor-handled actor) (actor-longest actor))))

;;; What is told

(defvar *told* '() "Names and numbers (or texts), the last first.")

(defun tell (value format &rest arguments)
  (push (cons (apply #'format nil format arguments) value) *told*))

(defun seconds (units) (/ (float units 1d0) internal-time-units-per-second))

(defun print-told ()
  "Names with a dot are of an object in the object: those of one are told one after the other."
  (let ((inside nil) (separator "") (text (reverse *told*)))
    (write-char #\{)
    (loop for (name . value) in text
          for dot = (position #\. name)
          for object = (and dot (subseq name 0 dot))
          do (unless (equal object inside)
               (when inside (write-char #\}))
               (format t "~A" separator)
               (when object (format t "~S: {" object))
               (setf inside object separator ""))
             (format t "~A~S: ~A" separator (if dot (subseq name (1+ dot)) name)
                     (typecase value
                       (integer value)
                       (string (format nil "~S" value))
                       (t (format nil "~,6F" value))))
             (setf separator ", "))
    (format t "~:[~;}~]}~%" inside)))

(defun older-bytes ()
  "What has outlived a collection, but did not come with the core."
  (loop for generation from 1 to 5 sum (sb-ext:generation-bytes-allocated generation)))

(defun trigger (generation)
  "The size beyond which that generation is collected: what it had after its last collection, and a fifth of a nursery."
  (sb-alien:slot (sb-alien:deref (sb-alien:extern-alien "generations" (array sb-kernel::generation 7)) generation)
                 'sb-kernel::gc-trigger))

(defun out-of-reach-bytes ()
  "What collections of the nursery will not go on to, by the rule of `collect_garbage` in SBCL's gencgc.c, while
nothing else survives: a generation is collected when the younger one was raised into it and it is beyond its trigger,
and raised when it has been collected before.

There is a second condition, `generation_average_age` beyond `minimum_age_before_gc` (0.75). That age is the sum of what
the generation held before each raise into it, by what it holds now: 0 after the first into an empty one, but at least 1
after the next one that brings nothing. So it keeps a queue from being collected with the raise that brought it, puts
that off to the next raise (every second collection of the nursery raises), and does not decide whether it comes within
ten."
  (loop with reached = t
        for generation from 1 to 5
        for bytes = (sb-ext:generation-bytes-allocated generation)
        do (setf reached (and reached (> bytes (trigger generation))))
        unless reached sum bytes
        do (setf reached (and reached (>= (sb-ext:generation-number-of-gcs generation)
                                          (sb-ext:generation-number-of-gcs-before-promotion generation))))))

(defun snapshot (name)
  "The heap as SBCL itself counts it, then a mark, at which strandline counts."
  (tell (sb-kernel:dynamic-usage) "~A.dynamic_bytes" name)
  ;; 6 is the generation of what came with the core, which is not collected.
  (loop for generation to 6
        do (tell (sb-ext:generation-bytes-allocated generation) "~A.generation_~D_bytes" name generation))
  (tell (older-bytes) "~A.older_bytes" name)
  (tell (out-of-reach-bytes) "~A.out_of_reach_bytes" name)
  (strandline:mark name))

(defvar *gc-real-time* (find-symbol "*GC-REAL-TIME*" :sb-ext) "SBCL counts it from 2.3.7 on.")

(defun gcs ()
  "How many collections there were, where the runtime counts them: under another name since 2.3."
  (let ((at (or (sb-sys:find-foreign-symbol-address "n_gcs")
                (sb-sys:find-foreign-symbol-address "n_lisp_gcs"))))
    (and at (sb-sys:signed-sap-ref-32 (sb-sys:int-sap at) 0))))

(defun clocks ()
  (multiple-value-bind (ok user system) (sb-unix:unix-getrusage sb-unix:rusage_self)
    (declare (ignore ok))
    (list (get-internal-real-time) user system sb-ext:*gc-run-time*
          (if *gc-real-time* (symbol-value *gc-real-time*) 0) (sb-ext:get-bytes-consed) (or (gcs) 0))))

(defun timed-run ()
  (destructuring-bind ((handled longest) (real user system gc-run gc-real consed gcs))
      (let* ((before (clocks))
             (result (sb-thread:join-thread (start-thread #'run)))
             (after (clocks)))
        (until-ended)
        (list result (mapcar #'- after before)))
    (tell handled "messages")
    (tell longest "longest_queue_messages")
    (tell (seconds real) "elapsed_seconds")
    (tell (/ user 1d6) "run_user_seconds")
    (tell (/ system 1d6) "run_system_seconds")
    (tell (seconds gc-run) "gc_run_seconds")
    (when *gc-real-time* (tell (seconds gc-real) "gc_real_seconds"))
    (tell (/ handled (seconds real)) "messages_per_second")
    (when (gcs) (tell gcs "gcs"))
    (tell consed "consed_bytes")
    (tell (/ consed (float handled 1d0)) "consed_bytes_per_message")))

;;; The heap, looked at

(defun census (name)
  "Every object of dynamic space: how many, how many messages, and in which generations these are."
  (let ((objects 0) (older 0) (messages 0) (generations (make-array 8 :initial-element 0)))
    (declare (type fixnum objects older messages))
    (sb-vm:map-allocated-objects
     (lambda (object type size)
       (declare (ignore type size))
       (incf objects)
       (let ((generation (or (sb-kernel:generation-of object) 7)))
         (when (< 0 generation 6) (incf older))
         (when (message-p object)
           (incf messages)
           (incf (svref generations generation)))))
     :dynamic)
    (tell objects "~A.objects" name)
    (tell older "~A.objects_in_older_generations" name)
    (tell messages "~A.messages" name)
    (tell (loop for generation from 1 to 5 sum (svref generations generation))
          "~A.messages_in_older_generations" name)
    (loop for generation below 6
          do (tell (svref generations generation) "~A.messages_in_generation_~D" name generation))
    objects))

(defun sampled-messages (count objects state)
  "Weak pointers to those that are messages of COUNT random objects of the first OBJECTS of dynamic space, found in one
pass."
  (let ((wanted (sort (loop repeat count collect (random objects state)) #'<))
        (at 0) (sampled 0) (older 0)
        (found '()))
    (declare (type fixnum at sampled older))
    (sb-vm:map-allocated-objects
     (lambda (object type size)
       (declare (ignore type size))
       (loop while (and wanted (= at (the fixnum (car wanted))))
             do (incf sampled)
                (when (message-p object)
                  (push (sb-ext:make-weak-pointer object) found)
                  (when (plusp (sb-kernel:generation-of object)) (incf older)))
                (pop wanted))
       (incf at))
     :dynamic)
    (tell sampled "sampled_objects")
    (tell (length found) "sampled_messages")
    (tell older "sampled_messages_in_older_generations")
    found))

(defvar *kept* nil "A message that is referred to: the search has to find the path to it.")

(defun search-paths (pointers)
  "To how many of POINTERS there is a path from a root, as SBCL's own search has it; and whether it found the one to
a message that is kept. One search for all: it inverts the whole heap first."
  (setf *kept* (make-message))
  (let ((found (mapcar #'car (sb-ext:search-roots (cons (sb-ext:make-weak-pointer *kept*) pointers)
                                                  :criterion :oldest :print nil))))
    (multiple-value-prog1 (values (count *kept* found :test-not #'eq) (count *kept* found))
      (setf *kept* nil))))

(defun hold-collections ()
  "No more collections by allocation until one is asked for: the census and the search allocate, and a collection between
them would take what is looked at. 0 is the runtime's word for no trigger (gencgc.c)."
  (let ((at (sb-sys:find-foreign-symbol-address "auto_gc_trigger")))
    (when at (setf (sb-sys:sap-ref-64 (sb-sys:int-sap at) 0) 0))))

(defun look ()
  "The author's question: what are random objects of the heap, and does anything refer to those that are messages?
Its own stack never holds one: what touches them has threads that have ended."
  (hold-collections)
  (let* ((state (sb-ext:seed-random-state *seed*))
         (objects (in-thread (lambda () (census "heap"))))
         (messages (in-thread (lambda () (sampled-messages *sampled* objects state))))
         (start (get-internal-real-time)))
    (tell (length messages) "searched_messages")
    (multiple-value-bind (paths kept) (search-paths messages)
      (tell (seconds (- (get-internal-real-time) start)) "search_seconds")
      (tell paths "found_paths")
      (tell kept "found_paths_to_a_kept_message"))
    ;; To an object that is gone there is no path: these were there to be found.
    (tell (in-thread (lambda () (count-if #'sb-ext:weak-pointer-value messages))) "still_there_after_search")))

(defun allocate (bytes kept)
  "Allocates that many bytes in vectors of 1,600, and puts every tenth where KEPT, a ring, had an older one."
  (let ((at 0))
    (declare (type fixnum at))
    (dotimes (i (ceiling bytes 1600))
      (let ((vector (make-array 198)))
        (setf *kept* vector)
        (when (and (plusp (length kept)) (zerop (mod i 10)))
          (setf (svref kept (mod at (length kept))) vector)
          (incf at))))
    (setf *kept* nil)))

(defun collections (collect)
  "What is in the older generations before, and after each of 20 collections."
  (tell (older-bytes) "collections_0.older_bytes")
  (loop for i from 1 to 20
        do (funcall collect)
           (tell (older-bytes) "collections_~D.older_bytes" i)))

(defun main ()
  (when (plusp *nursery*)
    ;; SBCL's own proportions: see `gc_init` in gencgc.c.
    (setf (sb-ext:bytes-consed-between-gcs) *nursery*)
    (loop for generation to 5
          do (setf (sb-ext:generation-bytes-consed-between-gcs generation) (floor *nursery* 5))))
  ;; The new nursery counts from the next collection on.
  (sb-ext:gc :full t)
  (snapshot "start")
  (timed-run)
  (snapshot "after")
  (cond ((string= *then* "remedies")
         (stop-finalizer)
         (collect)
         (snapshot "gc")
         (collect :gen 2)
         (snapshot "gc_gen_2")
         (collect :full t)
         (snapshot "gc_full"))
        ((string= *then* "look")
         (stop-finalizer)
         (clear-stack)
         (in-thread #'look)
         (collect :full t)
         (in-thread (lambda () (census "heap_after_gc_full"))))
        ((string= *then* "repeated")
         (collections #'sb-ext:gc))
        ((string= *then* "regular")
         (collections (lambda () (allocate (sb-ext:bytes-consed-between-gcs) #()))))
        ((string= *then* "working")
         ;; The ring holds what four nurseries leave.
         (let* ((nursery (sb-ext:bytes-consed-between-gcs))
                (kept (make-array (ceiling (* 4 nursery) 16000) :initial-element nil)))
           (collections (lambda () (allocate nursery kept))))))
  (tell (sb-ext:bytes-consed-between-gcs) "nursery_bytes")
  (tell (lisp-implementation-version) "sbcl_version")
  (print-told))

(main)
