// Package strandline names an instant of a Go program for `strandline run`.
//
//	import "example.org/you/strandline"     // this file, in a folder strandline of your module
//	strandline.Mark("cache filled")
//	strandline run -o cache.strandline -- ./program
//
// Without strandline (no STRANDLINE_MARK_FD in the environment) a mark does nothing: one atomic load and one
// branch after the first. With it, a mark is six short system calls plus the time that strandline takes for
// its sample. Figures, of allocation too: docs/probes.md.
//
// Go 1.19 or later, 64-bit Linux, no cgo and no package but the standard library's. Goroutines take turns,
// and so do processes of one tree; other goroutines run on while a mark waits, unless a ledger is taken,
// which stops the process. A child that os/exec starts inherits the descriptor.
package strandline

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	nameBytes = 200
	soDomain  = 39
	// syscall has no poll: how long a non-blocking socket is left alone. Ours is a blocking one unless
	// another process of the tree changed that.
	pause = 200 * time.Microsecond
)

var (
	// Not looked yet, on, off for ever.
	mode   atomic.Int32
	lock   sync.Mutex
	fd     int
	device uint64
	inode  uint64
	line   [nameBytes + 1]byte
	answer [1]byte
)

const (
	unknown = iota
	on
	off
)

// Mark names this instant; it returns when strandline has taken its sample. Control characters of the name
// become spaces; it is cut to 200 bytes. It does nothing where strandline is not there, or is no more.
func Mark(name string) {
	if mode.Load() == off {
		return
	}
	lock.Lock()
	defer lock.Unlock()
	if mode.Load() == unknown {
		if look() {
			mode.Store(on)
		} else {
			mode.Store(off)
		}
	}
	if mode.Load() == on && !(isOurs() && talk(fill(name))) {
		mode.Store(off)
	}
}

func fill(name string) []byte {
	bytes := copy(line[:nameBytes], name)
	for i, c := range line[:bytes] {
		if c < 32 || c == 127 {
			line[i] = ' '
		}
	}
	line[bytes] = '\n'
	return line[:bytes+1]
}

// talk writes the line and waits for the answer; false where there is nobody at the other end.
func talk(rest []byte) bool {
	// Processes of one tree share the socket, so they take turns: else one might read the answer that was
	// meant for another. The kernel lets go of the lock where its holder dies.
	turn(syscall.F_WRLCK)
	defer turn(syscall.F_UNLCK)
	for len(rest) > 0 {
		sent, err := syscall.SendmsgN(fd, rest, nil, nil, syscall.MSG_NOSIGNAL)
		switch {
		case err == nil && sent > 0:
			rest = rest[sent:]
		case err == syscall.EAGAIN:
			time.Sleep(pause)
		case err != syscall.EINTR:
			return false
		}
	}
	for {
		got, err := syscall.Read(fd, answer[:])
		switch {
		case err == nil:
			return got == 1
		case err == syscall.EAGAIN:
			time.Sleep(pause)
		case err != syscall.EINTR:
			return false
		}
	}
}

func turn(kind int16) {
	whole := syscall.Flock_t{Type: kind}
	for syscall.FcntlFlock(uintptr(fd), syscall.F_SETLKW, &whole) == syscall.EINTR {
	}
}

func socket(number int) (uint64, uint64, bool) {
	var file syscall.Stat_t
	if syscall.Fstat(number, &file) != nil || file.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return 0, 0, false
	}
	return uint64(file.Dev), file.Ino, true
}

// isOurs tells whether the descriptor is still the socket it was: it may be another file of the program's.
func isOurs() bool {
	d, i, is := socket(fd)
	return is && d == device && i == inode
}

// look tells whether there is a strandline to talk to: the number, above the standard descriptors, of a
// stream socket of the local kind.
func look() bool {
	value := os.Getenv("STRANDLINE_MARK_FD")
	if value == "" || len(value) > 9 {
		return false
	}
	number := 0
	for _, c := range value {
		if c < '0' || c > '9' {
			return false
		}
		number = number*10 + int(c-'0')
	}
	d, i, is := socket(number)
	if number < 3 || !is {
		return false
	}
	domain, err := syscall.GetsockoptInt(number, syscall.SOL_SOCKET, soDomain)
	if err != nil || domain != syscall.AF_UNIX {
		return false
	}
	kind, err := syscall.GetsockoptInt(number, syscall.SOL_SOCKET, syscall.SO_TYPE)
	if err != nil || kind != syscall.SOCK_STREAM {
		return false
	}
	fd, device, inode = number, d, i
	return true
}
