// SPDX-License-Identifier: Apache-2.0

// Package mmsg receives and sends many datagrams with one system call: recvmmsg(2) and sendmmsg(2).
package mmsg

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Message is the kernel's struct mmsghdr.
type Message struct {
	Header unix.Msghdr
	length uint32 // bytes received or sent
	_      [4]byte
}

// The kernel depends on these layouts; a wrong size must not compile.
const (
	_ = uint(unsafe.Sizeof(Message{}) - 64)
	_ = uint(64 - unsafe.Sizeof(Message{}))
	_ = uint(unsafe.Sizeof(unix.Iovec{}) - 16)
	_ = uint(16 - unsafe.Sizeof(unix.Iovec{}))
)

// newMessages returns count messages with room for one buffer each, which setData sets.
func newMessages(count int) []Message {
	list, vecs := make([]Message, count), make([]unix.Iovec, count)
	for i := range list {
		list[i].Header.Iov = &vecs[i]
		list[i].Header.SetIovlen(1)
	}
	return list
}

func (m *Message) setData(data []byte) {
	m.Header.Iov.Base = unsafe.SliceData(data)
	m.Header.Iov.SetLen(len(data))
}

// An Inbox is the memory for the datagrams of one call of Receive.
type Inbox struct {
	Messages []Message // the caller may set their buffers for peer addresses (names) and control data
	data     []byte
	stride   int // bytes from one datagram to the next
}

// padding follows each datagram. With a power of two as their distance, their first bytes would share a few CPU cache sets.
const padding = 64

// NewInbox returns an inbox for count datagrams of at most size bytes each.
func NewInbox(count, size int) *Inbox {
	b := &Inbox{Messages: newMessages(count), stride: size + padding}
	b.data = make([]byte, count*b.stride)
	for i := range b.Messages {
		b.Messages[i].setData(b.data[i*b.stride:][:size])
	}
	return b
}

// Receive reads the datagrams that the socket holds, without waiting. It returns EAGAIN if there is none.
//
// RawSyscall bypasses the scheduler: the call never blocks, and releasing Go's processor for it would cost more.
func (b *Inbox) Receive(fd uintptr) (n int, errno syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.Messages[0])), uintptr(len(b.Messages)),
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// ReadOne reads one datagram from r, a connection that is not a kernel socket.
func (b *Inbox) ReadOne(r io.Reader) error {
	n, err := r.Read(b.data[:b.stride-padding])
	b.Messages[0].length = uint32(n)
	return err
}

// Datagram returns the i-th datagram, cut if it did not fit.
func (b *Inbox) Datagram(i int) []byte { return b.data[i*b.stride:][:b.Messages[i].length] }

// Truncated reports whether the i-th datagram did not fit.
func (b *Inbox) Truncated(i int) bool { return b.Messages[i].Header.Flags&unix.MSG_TRUNC != 0 }

// An Outbox gathers datagrams that leave together through one socket.
type Outbox struct {
	messages []Message
	room     []byte
	used     int // bytes of room in use
	count    int
}

// NewOutbox returns an outbox for count datagrams, with memory for size bytes in total.
func NewOutbox(count, size int) *Outbox {
	return &Outbox{messages: newMessages(count), room: make([]byte, size)}
}

// Len returns the number of datagrams.
func (b *Outbox) Len() int { return b.count }

// Fits reports whether there is room for one more datagram of size bytes.
func (b *Outbox) Fits(size int) bool { return b.count < len(b.messages) && b.used+size <= len(b.room) }

// Buffer returns the free memory, with length 0.
func (b *Outbox) Buffer() []byte { return b.room[b.used:b.used:len(b.room)] }

// Add adds a datagram, up to the count given to NewOutbox. The caller appended it to Buffer, and append may have
// reallocated it. The message has no peer address and no control data yet.
func (b *Outbox) Add(datagram []byte) *Message {
	if cap(datagram) == len(b.room)-b.used {
		b.used += len(datagram)
	}
	m := &b.messages[b.count]
	m.setData(datagram)
	b.count++
	return m
}

// Datagram returns the i-th datagram.
func (b *Outbox) Datagram(i int) []byte {
	v := b.messages[i].Header.Iov
	return unsafe.Slice(v.Base, v.Len)
}

// Send sends the datagrams from the given one on, without waiting. If the kernel rejects one, Send returns its index
// and the error; the caller may go on with the next one.
func (b *Outbox) Send(fd uintptr, from int) (rejected int, errno syscall.Errno) {
	for from < b.count {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.messages[from])), uintptr(b.count-from),
			unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			from += int(n)
		case unix.EINTR:
		default:
			return from, errno
		}
	}
	return from, 0
}

// Reset empties the outbox. It drops all references to datagrams, peer addresses and control data.
func (b *Outbox) Reset() {
	for i := range b.messages[:b.count] {
		m := &b.messages[i]
		m.setData(nil)
		h := &m.Header
		h.Name, h.Namelen, h.Control = nil, 0, nil
		h.SetControllen(0)
	}
	b.count, b.used = 0, 0
}
