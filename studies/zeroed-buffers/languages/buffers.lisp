;;;; Takes COUNT buffers of 1 MiB: sbcl --script buffers.lisp PROBE make-array|initial-element|fill COUNT. Marks
;;;; `before` and `taken`; prints one line of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps
;;;; them in use until then).

(load (second *posix-argv*))

(defconstant +buffer-bytes+ (ash 1 20))

(defun take (idiom)
  (cond ((string= idiom "make-array")
         (make-array +buffer-bytes+ :element-type '(unsigned-byte 8)))
        ((string= idiom "initial-element")
         (make-array +buffer-bytes+ :element-type '(unsigned-byte 8) :initial-element 0))
        ((string= idiom "fill")
         (fill (make-array +buffer-bytes+ :element-type '(unsigned-byte 8)) 0))
        (t (error "no such idiom: ~a" idiom))))

(let* ((idiom (third *posix-argv*))
       (count (parse-integer (fourth *posix-argv*)))
       (buffers (make-array count)))
  (strandline:mark "before")
  (dotimes (i count) (setf (aref buffers i) (take idiom)))
  (strandline:mark "taken")
  (format t "{\"wanted_bytes\": ~d, \"sum\": ~d}~%" (* count +buffer-bytes+)
          (loop for buffer across buffers sum (aref (the (simple-array (unsigned-byte 8) (*)) buffer) 5000))))
