;;;; Prints SBCL's own figures of its heap without changing them: it allocates no byte between the
;;;; first figure of bytes and the wait for the next command. It writes numbers digit by digit into
;;;; memory outside the Lisp heap.
;;;;
;;;; A subject loads this file, makes its objects and calls (answer), which prints one JSON line and
;;;; another for each byte that it reads:
;;;;
;;;;     f    prints the figures. They are exact if every other thread slept: a joined thread and
;;;;          the finalizer thread close their allocation regions a little later, and SBCL counts
;;;;          the used part of a region only then
;;;;     s    prints SBCL's own table of generations on standard error, then the figures
;;;;     n    (gc), then prints the figures
;;;;     g    (gc :full t), then prints the figures, with those of the last census
;;;;     c    takes a census of the heap (which allocates), then prints the figures
;;;;     q    exits, as it does at the end of its input
;;;;
;;;; For SBCL 2.1 to 2.6 on 64-bit machines.

(in-package :subject)

(defconstant +room+ 65536)

(declaim (type sb-sys:system-area-pointer *line*) (type (integer 0 65536) *at*))
(sb-ext:defglobal *line* (sb-sys:int-sap 0))
(sb-ext:defglobal *at* 0)
(sb-ext:defglobal *average-ages* (make-array 8 :initial-element 0))

;;; Objects of type MESSAGE by generation, as of the last census.
(sb-ext:defglobal *census-instances* (make-array 8 :initial-element 0))
(sb-ext:defglobal *census-bytes* (make-array 8 :initial-element 0))
(sb-ext:defglobal *census-objects* 0)
(sb-ext:defglobal *gc-active* 0)
(declaim (type (unsigned-byte 62) *gc-active*))
(declaim (type simple-vector *average-ages* *census-instances* *census-bytes*) (type fixnum *census-objects*))

(defun make-room ()
  "Allocates the line's memory outside the Lisp heap. A saved core must call this again."
  (setf *line* (sb-sys:int-sap (sb-alien:alien-funcall
                                (sb-alien:extern-alien "malloc" (function sb-alien:unsigned sb-alien:unsigned)) +room+))
        *at* 0))

(declaim (inline put-byte))
(defun put-byte (byte)
  (declare (type (unsigned-byte 8) byte))
  (when (< *at* +room+)
    (setf (sb-sys:sap-ref-8 *line* *at*) byte)
    (incf *at*)))

(defun put-text (text)
  (declare (type simple-base-string text) (optimize speed))
  (dotimes (i (length text)) (put-byte (char-code (schar text i)))))

(defmacro put (text)
  `(put-text (load-time-value (coerce ,text 'simple-base-string) t)))

(defun put-number (number)
  (declare (type (unsigned-byte 62) number) (optimize speed))
  (let ((unit 1))
    (declare (type (unsigned-byte 62) unit))
    (loop while (and (< unit 1000000000000000000) (>= (truncate number unit) 10)) do (setf unit (* unit 10)))
    (loop (multiple-value-bind (digit rest) (truncate number unit)
            (put-byte (+ 48 (the (integer 0 9) digit)))
            (setf number rest))
          (when (= unit 1) (return))
          (setf unit (truncate unit 10)))))

(defmacro put-field (name value)
  `(progn (put ,(format nil ", \"~A\": " name))
          (put-number (the (unsigned-byte 62) ,value))))

(defun put-list (vector)
  (declare (type simple-vector vector))
  (put "[")
  (dotimes (i (length vector))
    (when (plusp i) (put ", "))
    (put-number (svref vector i)))
  (put "]"))

(defun send-line ()
  (put-byte 10)
  (let ((sent 0))
    (declare (type fixnum sent))
    (loop while (< sent *at*)
          do (let ((count (sb-alien:alien-funcall
                           (sb-alien:extern-alien "write" (function (sb-alien:signed 64) sb-alien:int
                                                                    sb-sys:system-area-pointer (sb-alien:unsigned 64)))
                           1 (sb-sys:sap+ *line* sent) (- *at* sent))))
               (declare (type (signed-byte 62) count))
               (cond ((plusp count) (incf sent count))
                     ;; The reader has closed the pipe.
                     ((/= (sb-alien:get-errno) 4) (return)))))
    (setf *at* 0)))

(defun receive-byte ()
  "The next byte; 113 (a q) at the end of input."
  (loop
    (let ((count (sb-alien:alien-funcall
                  (sb-alien:extern-alien "read" (function (sb-alien:signed 64) sb-alien:int
                                                          sb-sys:system-area-pointer (sb-alien:unsigned 64)))
                  0 *line* 1)))
      (declare (type (signed-byte 62) count))
      (cond ((= count 1) (return (sb-sys:sap-ref-8 *line* 0)))
            ;; A signal interrupted the read: collections send some.
            ((and (minusp count) (= (sb-alien:get-errno) 4)))
            (t (return 113))))))

(defun put-generation (number)
  (declare (type (integer 0 6) number))
  (when (plusp number) (put ", "))
  (put "{\"number\": ")
  (put-number number)
  (put-field "bytes_allocated" (sb-ext:generation-bytes-allocated number))
  (put-field "collections" (sb-ext:generation-number-of-gcs number))
  (put-field "collections_before_promotion" (sb-ext:generation-number-of-gcs-before-promotion number))
  (put-field "bytes_consed_between_gcs" (sb-ext:generation-bytes-consed-between-gcs number))
  (put-field "average_age_millionths" (svref *average-ages* number))
  (put-field "message_instances" (svref *census-instances* number))
  (put-field "message_bytes" (svref *census-bytes* number))
  (put "}"))

(defun put-expected (expected)
  "Puts fields from an association list of names and numbers."
  (loop for (name . value) in expected
        do (put ", \"")
           (put-text name)
           (put "\": ")
           (put-number value)))

(defun sum (vector)
  (declare (type simple-vector vector))
  (let ((sum 0))
    (declare (type (unsigned-byte 62) sum))
    (dotimes (i 7 sum) (incf sum (the (unsigned-byte 62) (svref vector i))))))

(defun print-figures (kind version trigger expected)
  "Prints one line. Reads average ages first: they are floating-point numbers, which allocate."
  (declare (type simple-base-string kind version))
  (dotimes (i 7)
    (setf (svref *average-ages* i) (floor (* 1000000 (rational (sb-ext:generation-average-age i))))))
  (put "{\"kind\": \"")
  (put-text kind)
  (put "\", \"version\": \"")
  (put-text version)
  (put "\"")
  (put-field "pid" (sb-alien:alien-funcall (sb-alien:extern-alien "getpid" (function sb-alien:int))))
  (put-field "dynamic_usage_bytes" (sb-kernel:dynamic-usage))
  (put-field "dynamic_space_bytes" (sb-ext:dynamic-space-size))
  (put-field "bytes_consed_between_gcs" (sb-ext:bytes-consed-between-gcs))
  (put-field "auto_gc_trigger_bytes" (logand (sb-sys:sap-ref-64 trigger 0) (1- (ash 1 62))))
  (put-field "gc_active_address" *gc-active*)
  (put-field "census_objects" *census-objects*)
  (put-field "message_instances" (sum *census-instances*))
  (put-field "message_bytes" (sum *census-bytes*))
  (put-expected expected)
  (put ", \"generations\": [")
  (dotimes (i 7) (put-generation i))
  (put "]}")
  (send-line))

(defun in-thread (function)
  "Calls FUNCTION in a new thread, whose stack the kernel has freed on return."
  (sb-thread:join-thread (sb-thread:make-thread function)))

(defun take-census ()
  "Counts all objects of dynamic space and the messages among them. Runs in a thread of its own: code
that touches a message may leave a reference to it on its stack, which a lasting thread would keep."
  (in-thread
   (lambda ()
     (fill *census-instances* 0)
     (fill *census-bytes* 0)
     (let ((objects 0))
       (declare (type fixnum objects))
       (sb-vm:map-allocated-objects
        (lambda (object type size)
          (declare (ignore type) (type fixnum size))
          (incf objects)
          (when (message-p object)
            (let ((generation (or (sb-kernel:generation-of object) 7)))
              (incf (the fixnum (svref *census-instances* generation)))
              (incf (the fixnum (svref *census-bytes* generation)) size))))
        :dynamic)
       (setf *census-objects* objects))
     nil)))

(defun print-table ()
  (sb-alien:alien-funcall (sb-alien:extern-alien "print_generation_stats" (function sb-alien:void)))
  (sb-alien:alien-funcall (sb-alien:extern-alien "fflush" (function sb-alien:int sb-alien:unsigned)) 0))

(defun answer (kind &rest expected)
  "Prints the figures and answers commands until the end of input."
  (let ((kind (coerce kind 'simple-base-string))
        (version (coerce (lisp-implementation-version) 'simple-base-string))
        (trigger (sb-sys:int-sap (sb-sys:find-foreign-symbol-address "auto_gc_trigger")))
        (expected (loop for (name . value) in expected collect (cons (coerce name 'simple-base-string) value))))
    (make-room)
    (setf *gc-active* (or (sb-sys:find-foreign-symbol-address "gc_active_p") 0))
    (finish-output)
    (print-figures kind version trigger expected)
    (loop
      (let ((command (receive-byte)))
        (case (code-char command)
          (#\f)
          (#\s (print-table))
          (#\n (sb-ext:gc))
          (#\g (sb-ext:gc :full t))
          (#\c (take-census))
          (#\q (sb-ext:exit :abort t :code 0)))
        (print-figures kind version trigger expected)))))
