// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNoSelector reports that the kernel rejects attachSelector.
var errNoSelector = errors.New("no socket selector")

// AttachSelector makes the kernel distribute queries among the server's own sockets only, even if
// sockets of other processes share the address with SO_REUSEPORT. A process with such a socket can
// replace the selector. It requires that the own sockets were bound to the address first, which Listen
// ensures. After a handover it does nothing: the other process attaches its own selector.
func (u *UDP) AttachSelector() error {
	if u.handover.started() {
		return nil
	}
	u.selectorMu.Lock()
	defer u.selectorMu.Unlock()
	own := u.sockets()
	return control(own[0].raw, func(fd int) error { return attachSelector(fd, len(own)) })
}

// AttachSelector makes the kernel pass connections to the server's own socket only, see
// [UDP.AttachSelector].
func (t *TCP) AttachSelector() error {
	raw := t.RawConn()
	if raw == nil || t.handover.started() {
		return nil
	}
	return control(raw, func(fd int) error { return attachSelector(fd, 1) })
}

// warnNoSelector logs that a server runs without a selector, unless err is nil.
func warnNoSelector(log *slog.Logger, network string, addr netip.AddrPort, err error) {
	if err != nil {
		log.Warn("socket selector refused", "network", network, "addr", addr, "err", err)
	}
}

// attachSelector makes the kernel distribute packets or connections for the address of socket fd
// among the first own sockets of its SO_REUSEPORT group. The group numbers sockets in the order of
// bind, so a socket that another process binds later gets nothing.
//
// Called before bind on a socket with SO_REUSEPORT, it gives the socket its own group. Bind then
// fails if any other socket has the address, with or without SO_REUSEPORT. Others may join later.
func attachSelector(fd, own int) error {
	program := selectorProgram(own, rand.Uint32())
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// Offsets that the program reads, from the network header of the packet.
const (
	skfNet   = 1<<32 - 0x100000 // SKF_NET_OFF
	srcIPv4  = skfNet + 12
	portIPv4 = skfNet + 20 // assumes no IP options: with them it hashes other bytes of the packet
	srcIPv6  = skfNet + 16 // the low 64 bits
	portIPv6 = skfNet + 40
)

// selectorProgram returns a program that returns an index below own: a hash of the client's address
// and port. All queries of one client socket go to one reader, which receives them with one system
// call, as with the kernel's own hash. The key prevents clients from choosing a reader by their
// port. A packet that the program cannot read goes to the first socket.
func selectorProgram(own int, key uint32) []unix.SockFilter {
	if own <= 1 {
		return []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	}
	const load, word, half, one = unix.BPF_LD | unix.BPF_ABS, unix.BPF_W, unix.BPF_H, unix.BPF_B
	const toX = unix.BPF_MISC | unix.BPF_TAX
	const alu, x = unix.BPF_ALU, unix.BPF_X
	return []unix.SockFilter{
		{Code: load | one, K: skfNet}, // version and header length: a socket of [::] gets both families
		{Code: alu | unix.BPF_RSH, K: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ, K: 4, Jf: 4},
		{Code: load | word, K: srcIPv4},
		{Code: toX},
		{Code: load | half, K: portIPv4},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: 6}, // to the XOR of both
		{Code: load | word, K: srcIPv6},
		{Code: toX},
		{Code: load | word, K: srcIPv6 + 4},
		{Code: alu | unix.BPF_XOR | x},
		{Code: toX},
		{Code: load | half, K: portIPv6},
		{Code: alu | unix.BPF_XOR | x},
		{Code: alu | unix.BPF_MUL, K: key | 1},
		{Code: alu | unix.BPF_RSH, K: 16},
		{Code: alu | unix.BPF_MOD, K: uint32(own)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
}

// setReceiveBuffer requests a receive buffer. More than the system's limit needs CAP_NET_ADMIN;
// without it the limit applies.
func setReceiveBuffer(fd, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
}

// ignorePathMTU sends IPv4 answers unfragmented whatever path MTU the kernel has learned for a
// client. An attacker can forge the ICMP message that lowers the path MTU to 552 bytes, and can
// forge fragments without knowing ports or IDs (RFC 9715). With IPv6, the largest answer of the
// default listen.udpSize fits every path MTU.
func ignorePathMTU(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
}

// sessionBuffer is the requested size in bytes of a session's kernel send and receive buffers. The
// kernel doubles it.
const sessionBuffer = 16 << 10

// limitSessionBuffers bounds the kernel memory of a TCP session whose client writes faster than the
// session reads, or reads slower than the session writes. By default that would be megabytes for each
// session, charged to this container. Errors are ignored.
//
// The kernel closes a connection whose client leaves data unread for the duration unread. Otherwise
// it would keep the answers of a closed session for minutes.
func limitSessionBuffers(fd int, unread time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sessionBuffer)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unread.Milliseconds()))
}

// unsentBytes returns the number of bytes that the kernel keeps until the client acknowledges them.
func unsentBytes(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
