;;;; Compiles the probe and the actor into the current folder, so that a run of the study does not begin with that.
;;;;
;;;;     sbcl --script build.lisp PATH/OF/strandline.lisp PATH/OF/actor.lisp

(defun compiled (source)
  (multiple-value-bind (fasl warnings failure)
      (compile-file source :output-file (merge-pathnames (make-pathname :name (pathname-name source) :type "fasl")))
    (declare (ignore warnings))
    (when (or failure (null fasl)) (sb-ext:exit :code 1 :abort t))
    fasl))

(destructuring-bind (probe actor) (last sb-ext:*posix-argv* 2)
  ;; The actor names what the probe exports.
  (load (compiled probe))
  (compiled actor))
