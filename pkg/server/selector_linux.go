// SPDX-License-Identifier: Apache-2.0

package server

import (
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

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
