;;;; Heaps whose live and dead objects are known from how they were made.
;;;;
;;;;     sbcl --script subject.lisp kind=KIND [count=N] [threads=N]
;;;;         [save=PATH [executable=1] [compression=LEVEL]]
;;;;
;;;; Tests count objects of type MESSAGE: `expected_messages` is the number that a full collection
;;;; leaves. The program then answers commands (figures.lisp). With `save` it makes the heap and
;;;; saves a core, which answers commands when it is started.
;;;;
;;;; SBCL takes every word on a thread's stack that looks like an address for a reference. So code
;;;; that touches messages runs in a thread that has ended before the figures are printed.

(defpackage :subject (:use :common-lisp))
(in-package :subject)

(defun argument (key default)
  "The VALUE of KEY=VALUE on the command line: a string, or a number where DEFAULT is one."
  (let* ((start (format nil "~A=" key))
         (found (find-if (lambda (word) (eql (mismatch start word) (length start))) sb-ext:*posix-argv*))
         (text (and found (subseq found (length start)))))
    (cond ((null text) default)
          ((stringp default) text)
          (t (let ((*read-eval* nil)) (read-from-string text))))))

(defstruct message
  "The slots of a message in the queue of an actor library."
  content handler arguments sender promise time-out cancelled)

(load (merge-pathnames "figures.lisp" (or *load-truename* *default-pathname-defaults*)))

(defvar *kept* nil "The root of the objects that are to live.")
(defvar *bound* nil "A variable that threads bind.")
(defvar *count* (argument "count" 100000))
(defvar *threads* (argument "threads" 4))
(declaim (type fixnum *count* *threads*))

(defun format-free (number)
  "A text of 20 characters, made without FORMAT, which would allocate more."
  (let ((text (make-string 20 :initial-element #\x)))
    (setf (schar text 0) (code-char (+ 48 (mod number 10))))
    text))

(defun messages (count &optional (content :foo))
  (loop repeat count collect (make-message :content content)))

(defun old (object)
  "Promotes OBJECT and all that it refers to out of the nursery; returns OBJECT."
  (sb-ext:gc :gen 1)
  (sb-ext:gc :gen 1)
  object)

(defun keep (live dead)
  "Promotes both out of the nursery, then drops the reference to DEAD."
  (setf *kept* (cons live dead))
  (old nil)
  (setf *kept* live))

(defmacro aside (&body body)
  "Runs BODY in a thread, waits until that has ended, and returns BODY's value."
  `(in-thread (lambda () ,@body)))

(defun waiting (function &rest arguments)
  "Starts a thread that runs FUNCTION, and waits until FUNCTION has its objects and calls its argument.
That call does not return."
  (let* ((ready (sb-thread:make-semaphore))
         (never (sb-thread:make-semaphore))
         (wait (lambda () (sb-thread:signal-semaphore ready) (sb-thread:wait-on-semaphore never))))
    (push (sb-thread:make-thread function :arguments (cons wait arguments)) *kept*)
    (sb-thread:wait-on-semaphore ready)))

;;; Kinds. Each returns how many messages a full collection will leave.

(defvar *kinds* '() "Names and functions.")

(defmacro define-kind (name () documentation &body body)
  `(push (cons ,(string-downcase name) (lambda () ,documentation ,@body)) *kinds*))

(define-kind idle ()
  "No messages."
  0)

(define-kind promoted ()
  "Dead messages in an older generation: they died after their promotion."
  (aside (old (messages *count*)) nil)
  0)

(define-kind live ()
  "All messages are reachable."
  (aside (setf *kept* (old (messages *count*))) nil)
  *count*)

(define-kind half ()
  "Every second message is dead."
  (aside (setf *kept* (loop for (kept) on (old (messages *count*)) by #'cddr collect kept)) nil)
  (ceiling *count* 2))

(define-kind generations ()
  "Some live and some dead in each of generations 0 to 3."
  (aside
    (let ((all '()))
      (dotimes (i 3)
        (let ((new (messages (floor *count* 4))))
          (push new all)
          (sb-ext:gc :gen (- 3 i))))
      (push (messages (floor *count* 4)) all)
      (setf *kept* (loop for list in all append (subseq list 0 100))))
    nil)
  400)

(define-kind actor ()
  "A queue that grew, survived collections, and was emptied."
  (let* ((queue (sb-thread:make-mutex :name "queue")) (first nil) (last nil) (filled nil))
    (labels ((send (message)
               (sb-thread:with-mutex (queue)
                 (let ((cell (list message)))
                   (if last (setf (cdr last) cell) (setf first cell))
                   (setf last cell))))
             (produce (count)
               (dotimes (i count)
                 (let ((i i))
                   (send (make-message :content :foo :handler (lambda (who) (eq who i)) :arguments (list i first)))))))
      (aside
        (mapc #'sb-thread:join-thread
              (loop repeat *threads*
                    collect (sb-thread:make-thread #'produce :arguments (list (floor *count* *threads*)))))
        nil)
      (setf filled t)
      (old nil)
      (aside (loop while first do (let ((message (message-handler (car first)))) (funcall message nil)) (pop first)) nil)
      (setf first nil last nil filled nil)
      0)))

(define-kind weak ()
  "Weak pointers to all messages; a strong reference to every tenth."
  (aside
    (let* ((all (messages *count*))
           (weak (mapcar #'sb-ext:make-weak-pointer all)))
      (setf *kept* (old (cons (loop for message in all for i from 0 when (zerop (mod i 10)) collect message) weak))))
    nil)
  (ceiling *count* 10))

(defun table-of (weakness)
  "A table of messages by messages, and the list of its messages that are also kept: keys of the first
quarter, values of the second, both of the third."
  (let* ((count (floor *count* 20))
         (table (make-hash-table :test 'eq :weakness weakness))
         (kept '()))
    (dotimes (i count)
      (let ((key (make-message)) (value (make-message)) (quarter (floor (* 4 i) count)))
        (setf (gethash key table) value)
        (when (member quarter '(0 2)) (push key kept))
        (when (member quarter '(1 2)) (push value kept))))
    (values table kept count)))

(define-kind weaktables ()
  "Hash tables of every weakness: an entry stays while the key or value that its weakness names lives."
  (aside
    (loop for weakness in '(nil :key :value :key-and-value :key-or-value)
          do (multiple-value-bind (table kept) (table-of weakness) (push table *kept*) (push kept *kept*)))
    (old nil)
    nil)
  ;; Live messages of each table, in units of a quarter's keys. Strong: all 8. Key: keys and values
  ;; of quarters 0 and 2, and the kept values of 1 (5). Value: keys and values of 1 and 2, and the
  ;; kept keys of 0 (5). Key and value: both of 2, and the kept ones of 0 and 1 (4). Key or value:
  ;; keys and values of 0, 1 and 2 (6).
  (* (+ 8 5 5 4 6) (floor (floor *count* 20) 4)))

(defun one-table (weakness quarters)
  "Makes a table of one weakness; returns how many messages live in QUARTERS units of a quarter's keys."
  (aside
    (multiple-value-bind (table kept) (table-of weakness) (setf *kept* (list table kept)))
    (old nil)
    nil)
  (* quarters (floor (floor *count* 20) 4)))

(define-kind weak-key () "One table of `weaktables`." (one-table :key 5))
(define-kind weak-value () "See `weak-key`." (one-table :value 5))
(define-kind weak-key-and-value () "See `weak-key`." (one-table :key-and-value 4))
(define-kind weak-key-or-value () "See `weak-key`." (one-table :key-or-value 6))

(define-kind ephemerons ()
  "Key-weak tables. Only its values refer to the keys: each to its own key and to the previous one."
  (aside
    (let ((table (make-hash-table :test 'eq :weakness :key)) (previous nil))
      (dotimes (i (floor *count* 10))
        (let ((key (make-message)))
          (setf (gethash key table) (make-message :content key :sender previous) previous key)))
      (push table *kept*))
    (old nil)
    nil)
  0)

(define-kind chain ()
  "A key-weak table in which each value holds the only reference to the next key; the first key is kept."
  (aside
    (let ((table (make-hash-table :test 'eq :weakness :key))
          (key (make-message)))
      (push key *kept*)
      (dotimes (i 999)
        (let ((next (make-message)))
          (setf (gethash key table) next key next)))
      (push table *kept*))
    (old nil)
    nil)
  1000)

(define-kind finalizers ()
  "Dead and live messages with finalizers."
  (aside
    (let ((all (messages (floor *count* 10))))
      (dolist (message all) (sb-ext:finalize message (lambda ()) :dont-save t))
      (setf *kept* (subseq (old all) 0 (floor *count* 20))))
    nil)
  (floor *count* 20))

(define-kind large ()
  "Vectors of many pages, boxed and unboxed, live and dead; live boxed ones refer to one message, dead ones to another."
  (aside
    (flet ((vectors (content)
             (loop repeat 8
                   collect (make-array 200000 :initial-element content)
                   collect (make-array 1000000 :element-type '(unsigned-byte 8))
                   collect (make-array 200000 :element-type 'double-float))))
      (keep (vectors (make-message)) (vectors (make-message))))
    nil)
  1)

(define-kind specialized ()
  "Live and dead objects of every kind of vector and number."
  (aside
    (flet ((some-of-each (n)
             (append
              (loop for type in '(bit (unsigned-byte 2) (unsigned-byte 4) (unsigned-byte 7) (unsigned-byte 8)
                                  (unsigned-byte 15) (unsigned-byte 16) (unsigned-byte 31) (unsigned-byte 32)
                                  (unsigned-byte 62) (unsigned-byte 63) (unsigned-byte 64) (signed-byte 8)
                                  (signed-byte 16) (signed-byte 32) (signed-byte 64) fixnum single-float double-float
                                  (complex single-float) (complex double-float) base-char character t nil)
                    append (loop for length in '(0 1 2 3 7 8 63 64 65 1000)
                                 collect (make-array (+ length n) :element-type type)))
              (loop for n from 62 to 600 collect (ash -3 n))
              (loop for n from 62 to 600 collect (1+ (ash 7 n)))
              (list (/ 1 (+ 3 n)) (complex 1 (+ 2 n)) (complex 1f0 (+ 2f0 n)) (complex 1d0 (+ 2d0 n)) (+ 1d0 n)
                    (make-array (list 3 4 (+ 5 n))) (make-array 10 :adjustable t :fill-pointer 3)
                    (make-string-output-stream) (sb-sys:int-sap (+ 4096 n)) (random-state-p *random-state*)
                    (make-random-state) (make-symbol "UNINTERNED") (make-hash-table :test 'equal)
                    (make-condition 'simple-error :format-control "" :format-arguments (list n))
                    (sb-thread:make-mutex) (copy-readtable) (make-message)))))
      (keep (loop for i below 50 append (some-of-each i))
            (loop for i below 50 append (some-of-each i))))
    nil)
  50)

(define-kind closures ()
  "Messages that only closures refer to, through value cells; half of the closures are kept."
  (aside
    (let* ((count (floor *count* 10))
           (closures (loop for message in (messages count)
                           collect (let ((message message)) (lambda (&optional new) (if new (setf message new) message))))))
      (keep (subseq closures 0 (floor count 2)) closures))
    nil)
  (floor (floor *count* 10) 2))

(define-kind instances ()
  "Instances with messages in their slots: of a class, of a funcallable class, of a structure with raw slots."
  (eval '(progn (defclass thing () ((message :initarg :message)))
                (defclass callable () ((message :initarg :message)) (:metaclass sb-mop:funcallable-standard-class))
                (defstruct raw (one 1d0 :type double-float) message (two 2 :type (unsigned-byte 64)))))
  (aside
    (flet ((things (n)
             (loop repeat n
                   collect (make-instance 'thing :message (make-message))
                   collect (make-instance 'callable :message (make-message))
                   collect (funcall 'make-raw :message (make-message)))))
      (keep (things 500) (things 1000)))
    nil)
  1500)

(define-kind conses ()
  "A list of a hundred times as many conses as there are messages, with a message at its end; and a dead one."
  (aside
    (flet ((long-list ()
             (let ((list (list (make-message))))
               (dotimes (i (* 100 *count*) list) (push i list)))))
      (keep (long-list) (long-list)))
    nil)
  1)

(define-kind eqtables ()
  "An EQ table whose keys a collection has moved since they were put there."
  (aside
    (let ((table (make-hash-table :test 'eq)))
      (dolist (message (messages (floor *count* 10))) (setf (gethash message table) (list message)))
      (keep (list table) (messages (floor *count* 10))))
    nil)
  (floor *count* 10))

(define-kind stacks ()
  "Threads that hold a hundred messages each, on their stacks only; a list of dead ones."
  (aside (old (messages *count*)) nil)
  (dotimes (i *threads*)
    (waiting (lambda (wait)
               (let ((held (make-array 100)))
                 (declare (dynamic-extent held))
                 (map-into held #'make-message)
                 (funcall wait)
                 (print (svref held 0))))))
  (aside (old nil))
  (* 100 *threads*))

(define-kind bindings ()
  "Threads that each hold a message by a dynamic binding only."
  (dotimes (i *threads*)
    (waiting (lambda (wait)
               (let ((*bound* (aside (make-message))))
                 (funcall wait)
                 (print *bound*)))))
  (aside (old (messages *count*)) nil)
  *threads*)

(define-kind shadowed ()
  "Threads whose message is the value of a binding that another one hides: the binding stack holds it."
  (dotimes (i *threads*)
    (waiting (lambda (wait)
               (let ((*bound* (aside (make-message))))
                 (let ((*bound* nil))
                   (funcall wait)
                   (print *bound*))))))
  (aside (old (messages *count*)) nil)
  *threads*)

(define-kind pinned ()
  "Threads that each pin a message."
  (dotimes (i *threads*)
    (waiting (lambda (wait)
               (let ((message (make-message)))
                 (sb-sys:with-pinned-objects (message)
                   (funcall wait))))))
  (aside (old (messages *count*)) nil)
  *threads*)

(define-kind inside ()
  "Threads that hold untagged addresses inside messages, which keep nothing."
  (dotimes (i *threads*)
    (waiting (lambda (wait)
               (let ((held (make-array 4 :element-type '(unsigned-byte 64))))
                 (declare (dynamic-extent held))
                 (let ((address (aside (sb-kernel:get-lisp-obj-address (make-message)))))
                   (setf (aref held 0) (logandc2 address 15) (aref held 1) (+ 16 (logandc2 address 15)))
                   (setf address 0)
                   (funcall wait)
                   (print (aref held 1)))))))
  (aside (old (messages *count*)) nil)
  0)

(defvar *symbol* nil)

(define-kind symbols ()
  "Messages held by a symbol of the program, one of Common Lisp, a property list, an uninterned symbol,
and a function's name."
  (aside (setf *symbol* (make-message)
               *** (make-message)
               (get 'property :message) (make-message)
               *kept* (let ((symbol (gensym))) (setf (symbol-value symbol) (make-message)) symbol))
         (setf (fdefinition 'by-name) (let ((message (make-message))) (lambda () message)))
         nil)
  (aside (old (messages *count*)) nil)
  5)

(define-kind constants ()
  "Messages that are constants of two compiled functions, one of which is kept."
  (aside (setf (fdefinition 'kept-function) (compile nil `(lambda () (list ,(make-message) ',(make-message)))))
         (compile nil `(lambda () ,(make-message)))
         nil)
  (aside (old (messages *count*)) nil)
  2)

(define-kind foreign ()
  "A foreign thread that never ran Lisp code."
  (sb-alien:with-alien ((thread (sb-alien:unsigned 64)))
    (sb-alien:alien-funcall
     (sb-alien:extern-alien "pthread_create" (function sb-alien:int (* (sb-alien:unsigned 64)) sb-alien:unsigned
                                                       sb-alien:unsigned sb-alien:unsigned))
     (sb-alien:addr thread) 0 (sb-sys:find-foreign-symbol-address "pause") 0))
  (aside (old (messages *count*)) nil)
  0)

(define-kind ended ()
  "Threads that held messages on their stacks and have ended."
  (mapc #'sb-thread:join-thread
        (loop repeat *threads*
              collect (sb-thread:make-thread
                       (lambda ()
                         (let ((held (make-array 100)))
                           (declare (dynamic-extent held))
                           (map-into held #'make-message)
                           (old nil)
                           nil)))))
  0)

(define-kind garbage ()
  "Dead messages in the nursery that have not survived a collection."
  (aside (messages (min *count* 20000)) nil)
  0)

(define-kind types ()
  "Types whose names have characters of every kind, and one whose name is too long."
  (flet ((kept-type (name)
           (eval `(progn (defstruct (,(intern name) (:constructor ,(intern (concatenate 'string "NEW-" name))) (:copier nil)
                                                    (:predicate nil) (:conc-name ,(gensym)))
                           message)
                         (dotimes (i 1000) (push (,(intern (concatenate 'string "NEW-" name)) :message i) *kept*))))))
    (kept-type "lower-case")
    (kept-type "with space")
    (kept-type (format nil "escape~C[2J~C" (code-char 27) (code-char 7)))
    (kept-type (map 'string #'code-char '(1040 1082 1090 1105 1088)))
    (kept-type (make-string 5000 :initial-element #\L))
    (kept-type "../../etc/passwd")
    (kept-type "<script>"))
  (aside (old nil) nil)
  0)

(define-kind secret ()
  "A text that must not be printed: in strings, names of symbols and packages, and byte vectors; live and dead."
  (let ((secret (argument "secret" "")))
    (flet ((hide ()
             (list (copy-seq secret) (coerce secret 'simple-base-string) (make-symbol (copy-seq secret)) (intern secret)
                   (intern secret :keyword) (make-package (format nil "P-~A-~D" secret (random 1000000000)))
                   (map '(simple-array (unsigned-byte 8) (*)) #'char-code secret) (pathname secret)
                   (make-message :content (copy-seq secret) :handler (intern secret))
                   (let ((text (copy-seq secret))) (lambda () text)))))
      (aside (keep (loop repeat 500 collect (hide)) (loop repeat 500 collect (hide))) nil)))
  500)

(define-kind mixed ()
  "Messages with a list, a vector and a text, 304 bytes each; three in four live."
  (let ((count (floor *count*)))
    (aside
      (let ((all '()))
        (dotimes (i count)
          (push (make-message :content (format-free i) :arguments (list i i) :handler (make-array 8 :initial-element i))
                all))
        (old all)
        (setf *kept* (loop for message in all for i from 0 unless (= 3 (mod i 4)) collect message)))
      nil)
    (old nil)
    (- count (floor count 4))))

(defun allocate-for-ever (ring)
  "Allocates without end; RING keeps the newest messages."
  (declare (type simple-vector ring))
  (let ((at 0))
    (declare (type fixnum at))
    (loop (setf at (mod (1+ at) (length ring))
                (svref ring at) (make-message :content (make-array (mod at 50)) :arguments (list at (svref ring (floor at 2))))
                (message-arguments (svref ring at)) nil)
          (make-array 100))))

(define-kind hot ()
  "Threads that allocate without end, so that collections run one after the other."
  (setf (sb-ext:bytes-consed-between-gcs) (argument "nursery" 4000000))
  (loop repeat *threads*
        do (sb-thread:make-thread #'allocate-for-ever
                                  :arguments (list (make-array (max 1 *count*) :initial-element nil))))
  0)

(defun make-heap (kind)
  "Makes the heap of a kind; returns how many messages a full collection will leave."
  (let ((function (cdr (assoc kind *kinds* :test #'string=))))
    (unless function (error "no kind ~A: one of ~{~A~^ ~}" kind (mapcar #'car *kinds*)))
    (prog1 (funcall function)
      ;; Compiling this file fills SBCL's caches of types; (gc :full t) empties them. Until then
      ;; they keep about 1 MB, whatever the size of the heap.
      (when (zerop (argument "caches" 0)) (sb-impl::drop-all-hash-caches))
      (unless (or (string= kind "hot") (plusp (argument "census-less" 0))) (take-census)))))

(defun answer-kind (kind)
  (answer kind (cons "expected_messages" (make-heap kind))))

(defun main ()
  (let ((kind (argument "kind" "idle"))
        (save (argument "save" "")))
    (if (string= save "")
        (answer-kind kind)
        ;; Saving makes the live objects pseudo-static and drops the dead ones. The new process
        ;; makes a second heap of the kind.
        (let ((saved (make-heap "live")))
          (apply #'sb-ext:save-lisp-and-die save
                 :executable (plusp (argument "executable" 0))
                 :toplevel (lambda ()
                             (let ((kept *kept*))
                               (answer kind (cons "expected_messages" (+ saved (make-heap kind)))
                                       (cons "saved_messages" (length kept)))))
                 (let ((level (argument "compression" 0)))
                   (and (plusp level) (list :compression level))))))))

(main)
