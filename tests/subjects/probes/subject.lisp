;;;; Grows by 64 MiB at a mark and gives it back at the next; status 7.
(require :sb-posix)
(handler-bind ((warning (lambda (warning) (format *error-output* "~a~%" warning))))
  (load (merge-pathnames "../../../probes/lisp/strandline.lisp" *load-truename*)))

;; sbcl --script FILE TASK ARGUMENT; some versions remove the options that they have processed.
(defvar *task* (first (last sb-ext:*posix-argv* 2)))
(defvar *argument* (second (last sb-ext:*posix-argv* 2)))

(defun marks (count)
  (loop repeat count do (strandline:mark "quiet")))

(defun fork-marks (count)
  (let ((child (sb-posix:fork)))
    (when (zerop child)
      (marks count)
      (sb-ext:exit :code 3 :abort t))
    (sb-posix:waitpid child 0)))

(defun crowd (count)
  (let ((threads (loop repeat 4 collect (sb-thread:make-thread #'marks :arguments (list count)))))
    ;; The collector interrupts marks: it stops threads by signals.
    (loop repeat 20 do (sb-ext:gc))
    (mapc #'sb-thread:join-thread threads))
  ;; A timeout unwinds a mark: the next mark must read the late answer, and the lock must be free,
  ;; because a child waits for it.
  (loop repeat 200
        do (handler-case (sb-ext:with-timeout 0.0002 (marks 100)) (sb-ext:timeout ()))
           (fork-marks 1))
  (fork-marks count)
  (strandline:mark "after")
  (sb-ext:exit :code 7 :abort t))

(when (equal *task* "crowd")
  (crowd (parse-integer *argument*)))
(when (equal *task* "loop")
  (marks 100)
  (strandline:mark "before")
  (let ((before (sb-ext:get-bytes-consed)))
    (marks (parse-integer *argument*))
    (strandline:mark "after")
    (format t "allocated bytes a mark: ~d~%"
            (floor (- (sb-ext:get-bytes-consed) before) (parse-integer *argument*))))
  (finish-output)
  (sb-ext:exit :code 7 :abort t))

(strandline:mark "start")
(when (equal *task* "reuse")
  (sb-posix:dup2 (sb-posix:open *argument* (logior sb-posix:o-rdwr sb-posix:o-creat) #o600)
                 (parse-integer (sb-ext:posix-getenv "STRANDLINE_MARK_FD"))))
(defvar *memory* (sb-posix:mmap nil (ash 64 20) (logior sb-posix:prot-read sb-posix:prot-write)
                                (logior sb-posix:map-private sb-posix:map-anon) -1 0))
(loop for offset below (ash 64 20) by 4096 do (setf (sb-sys:sap-ref-8 *memory* offset) 1))
(strandline:mark "grown")
(sb-posix:munmap *memory* (ash 64 20))
(strandline:mark "freed")
(strandline:mark (format nil "two~%lines~a" (code-char 1)))
(strandline:mark (make-string 300 :initial-element #\n))
(format t "done~%")
(sb-ext:exit :code 7)
