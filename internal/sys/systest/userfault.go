package systest

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Userfault is a page of memory that blocks every reader, including the kernel on behalf
// of another process (userfaultfd(2)).
type Userfault struct {
	Address uintptr
	faults  int
	page    []byte
}

// From include/uapi/linux/userfaultfd.h.
const (
	uffdNew      = 0xaa00     // USERFAULTFD_IOC_NEW
	uffdAPI      = 0xc018aa3f // UFFDIO_API
	uffdRegister = 0xc020aa00 // UFFDIO_REGISTER
	uffdZeroPage = 0xc020aa04 // UFFDIO_ZEROPAGE
	uffdMissing  = 1          // UFFDIO_REGISTER_MODE_MISSING
	uffdMsgBytes = 32         // struct uffd_msg
)

// NewUserfault maps such a page. It needs /dev/userfaultfd, CAP_SYS_PTRACE, or
// vm.unprivileged_userfaultfd.
func NewUserfault() (*Userfault, error) {
	fd, err := openUserfault()
	if err != nil {
		return nil, err
	}
	api := struct{ api, features, ioctls uint64 }{api: 0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return nil, errno
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(page)))
	register := struct{ start, size, mode, ioctls uint64 }{uint64(at), uint64(len(page)), uffdMissing, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdRegister, uintptr(unsafe.Pointer(&register))); errno != 0 {
		return nil, errno
	}
	return &Userfault{at, fd, page}, nil
}

func openUserfault() (int, error) {
	device, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(device)
		if fd, err := unix.IoctlRetInt(device, uffdNew); err == nil {
			return fd, nil
		}
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// Wait blocks until a reader waits for the memory.
func (u *Userfault) Wait() error {
	var msg [uffdMsgBytes]byte
	_, err := unix.Read(u.faults, msg[:])
	return err
}

// Resolve lets the waiting readers continue.
func (u *Userfault) Resolve() error {
	zero := struct{ start, size, mode, done uint64 }{uint64(u.Address), uint64(len(u.page)), 0, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(u.faults), uffdZeroPage, uintptr(unsafe.Pointer(&zero))); errno != 0 {
		return errno
	}
	return nil
}

// Rearm makes later readers block again.
func (u *Userfault) Rearm() error { return unix.Madvise(u.page, unix.MADV_DONTNEED) }

// Faults returns the descriptor that reports blocked readers. When its last duplicate is
// closed, all readers continue.
func (u *Userfault) Faults() int { return u.faults }

// ConnectAt calls connect(2) with an address at any place in memory.
func ConnectAt(fd int, address uintptr, size int) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), address, uintptr(size))
	return errno
}

// WriteAt calls write(2) with memory at any address.
func WriteAt(fd int, from uintptr, size int) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_WRITE, uintptr(fd), from, uintptr(size))
	return errno
}
