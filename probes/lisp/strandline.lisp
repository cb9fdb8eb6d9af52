;;;; strandline: names an instant of a Common Lisp program for `strandline run`.
;;;;
;;;;     (load "/path/to/probes/lisp/strandline.lisp")     ; or compile it into your system
;;;;     (strandline:mark "cache filled")
;;;;     strandline run -o cache.strandline -- sbcl --script program.lisp
;;;;
;;;; Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is a call that returns at once.
;;;; With it, a mark is six short system calls plus the time that strandline takes for its sample; it conses
;;;; a copy of the name and little else. Figures: docs/probes.md.
;;;;
;;;; SBCL on 64-bit Linux, no libraries; elsewhere a mark does nothing. Threads take turns, and so do
;;;; processes of one tree. It works in the child of a fork, in a core that was saved, and where a timeout
;;;; or an interrupt unwinds it.

(defpackage :strandline
  (:use :common-lisp)
  (:export #:mark))

(in-package :strandline)

#-(and sbcl linux 64-bit)
(defun mark (name)
  "Does nothing: strandline has no probe for this Lisp."
  (declare (ignore name))
  (values))

#+(and sbcl linux 64-bit)
(progn
  (deftype octets () '(simple-array (unsigned-byte 8) (*)))

  (defconstant +name-bytes+ 200)
  (defconstant +msg-nosignal+ #x4000)
  (defconstant +msg-peek+ 2)
  (defconstant +msg-dontwait+ #x40)
  (defconstant +f-setlkw+ 7)
  (defconstant +eintr+ 4)
  (defconstant +eagain+ 11)

  (sb-alien:define-alien-routine ("send" %send) sb-alien:long
    (fd sb-alien:int) (bytes sb-sys:system-area-pointer) (count sb-alien:unsigned-long) (flags sb-alien:int))
  (sb-alien:define-alien-routine ("recv" %recv) sb-alien:long
    (fd sb-alien:int) (bytes sb-sys:system-area-pointer) (count sb-alien:unsigned-long) (flags sb-alien:int))
  (sb-alien:define-alien-routine ("fcntl" %fcntl) sb-alien:int
    (fd sb-alien:int) (command sb-alien:int) (argument sb-sys:system-area-pointer))
  (sb-alien:define-alien-routine ("poll" %poll) sb-alien:int
    (entries sb-sys:system-area-pointer) (count sb-alien:unsigned-long) (milliseconds sb-alien:int))
  (sb-alien:define-alien-routine ("getsockopt" %getsockopt) sb-alien:int
    (fd sb-alien:int) (level sb-alien:int) (option sb-alien:int)
    (value sb-sys:system-area-pointer) (bytes sb-sys:system-area-pointer))

  (defvar *mode* :unknown "One of :UNKNOWN (not looked yet), :ON and :OFF (for ever).")
  (defvar *lock* (sb-thread:make-mutex :name "strandline mark"))
  (defvar *busy* nil "Bound in a mark: an interrupt's mark cannot wait for it, and is left out.")
  (defvar *fd* -1)
  (defvar *device* 0)
  (defvar *inode* 0)
  (defvar *owed* 0 "Answers awaited: one that an unwind left behind is read with the next.")
  (defvar *process* 0 "Whose *OWED* it is: a fork's child owes nothing.")
  (declaim (type (signed-byte 32) *fd*) (type (integer 0 1000000) *owed*))

  (defun forget ()
    "A saved core starts in another process, perhaps without strandline."
    (setf *mode* :unknown))
  (pushnew 'forget sb-ext:*init-hooks*)

  (defmacro with-sap ((name octets) &body body)
    (let ((vector (gensym)))
      `(let ((,vector ,octets))
         (declare (type octets ,vector))
         (sb-sys:with-pinned-objects (,vector)
           (let ((,name (sb-sys:vector-sap ,vector))) ,@body)))))

  (defun bytes (&rest values)
    (coerce values '(simple-array (unsigned-byte 8) (*))))

  (defun socket-p (fd)
    "Device and inode where FD is a socket, else NIL."
    (multiple-value-bind (ok device inode mode) (sb-unix:unix-fstat fd)
      (when (and ok (= (logand mode #o170000) #o140000))
        (values device inode))))

  (defun ours-p ()
    "The descriptor may be another file of the program's by now."
    (multiple-value-bind (device inode) (socket-p *fd*)
      (and device (= device *device*) (= inode *inode*))))

  (defun option-one-p (fd option)
    "Whether a socket option is 1. SOL_SOCKET is 1 too."
    (let ((value (bytes 0 0 0 0)))
      (with-sap (to value)
        (with-sap (size (bytes 4 0 0 0))
          (and (zerop (%getsockopt fd 1 option to size)) (equalp value (bytes 1 0 0 0)))))))

  (defun look ()
    "Whether there is a strandline to talk to: the number, above the standard descriptors, of a stream
socket of the local kind."
    (let* ((value (or (sb-ext:posix-getenv "STRANDLINE_MARK_FD") ""))
           (fd (and (<= 1 (length value) 9)
                    (every (lambda (c) (char<= #\0 c #\9)) value)
                    (parse-integer value))))
      (when (and fd (> fd 2))
        (multiple-value-bind (device inode) (socket-p fd)
          ;; SO_DOMAIN 39 is AF_UNIX 1, SO_TYPE 3 is SOCK_STREAM 1.
          (when (and device (option-one-p fd 39) (option-one-p fd 3))
            (setf *fd* fd *device* device *inode* inode)
            t)))))

  (defun line (name)
    (let* ((text (if (stringp name) name (princ-to-string name)))
           (text (subseq text 0 (min (length text) +name-bytes+)))
           (octets (sb-ext:string-to-octets text :external-format :utf-8))
           (size (min (length octets) +name-bytes+))
           (line (make-array (1+ size) :element-type '(unsigned-byte 8))))
      (map-into line (lambda (byte) (if (or (< byte 32) (= byte 127)) 32 byte)) octets)
      (setf (aref line size) 10)
      line))

  (defun failed-for-good-p (events)
    "Whether the last call failed for another reason than a signal, or a socket that would block: waits then."
    (let ((errno (sb-alien:get-errno)))
      (cond ((= errno +eintr+) nil)
            ((= errno +eagain+)
             ;; struct pollfd
             (with-sap (entry (bytes (ldb (byte 8 0) *fd*) (ldb (byte 8 8) *fd*) (ldb (byte 8 16) *fd*)
                                     (ldb (byte 8 24) *fd*) events 0 0 0))
               (%poll entry 1 -1))
             nil)
            (t t))))

  (defun turn (type)
    "Processes of one tree share the socket, so they take turns: else one might read the answer that was
meant for another. TYPE is F_WRLCK (1) or F_UNLCK (2)."
    (let ((whole (make-array 32 :element-type '(unsigned-byte 8) :initial-element 0)))
      (declare (dynamic-extent whole))
      (setf (aref whole 0) type)
      (with-sap (at whole)
        (loop while (and (minusp (%fcntl *fd* +f-setlkw+ at)) (= (sb-alien:get-errno) +eintr+))))))

  (defun talk (line)
    "Writes LINE and waits until nothing is owed; false where there is nobody at the other end."
    (with-sap (from line)
      (loop with at = 0
            while (< at (length line))
            ;; Sent and counted while no interrupt may unwind.
            do (let ((sent (sb-sys:without-interrupts
                             (let ((sent (%send *fd* (sb-sys:sap+ from at) (- (length line) at)
                                                (logior +msg-nosignal+ +msg-dontwait+))))
                               (when (plusp sent)
                                 (when (= (incf at sent) (length line)) (incf *owed*)))
                               sent))))
                 (cond ((plusp sent))
                       ((or (zerop sent) (failed-for-good-p 4)) (return-from talk nil))))))
    (let ((answer (make-array 1 :element-type '(unsigned-byte 8))))
      (declare (dynamic-extent answer))
      (with-sap (to answer)
        (loop while (plusp *owed*)
              ;; Only looked at while an interrupt may unwind; taken and counted while none may.
              do (let ((got (%recv *fd* to 1 +msg-peek+)))
                   (cond ((= got 1)
                          (sb-sys:without-interrupts
                            (decf *owed*)
                            (%recv *fd* to 1 +msg-dontwait+)))
                         ((or (zerop got) (failed-for-good-p 1)) (return-from talk nil)))))))
    t)

  (defun mark-on (name)
    (let ((line (line name))
          (process (sb-unix:unix-getpid)))
      (sb-thread:with-mutex (*lock*)
        (unless (eql *process* process)
          (setf *process* process *owed* 0))
        (when (eq *mode* :unknown)
          (setf *mode* (if (look) :on :off)))
        (when (and (eq *mode* :on)
                   (not (and (ours-p)
                             ;; An interrupt may unwind the exchange, but never skips the release of the lock.
                             (sb-sys:without-interrupts
                               (unwind-protect (sb-sys:with-local-interrupts (turn 1) (talk line))
                                 (turn 2))))))
          (setf *mode* :off)))))

  (defun mark (name)
    "Names this instant; returns when strandline has taken its sample. Control characters of the name become
spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more."
    (unless (or (eq *mode* :off) *busy*)
      (let ((*busy* t)) (mark-on name)))
    (values)))
