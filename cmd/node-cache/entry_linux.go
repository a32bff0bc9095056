// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"unsafe"
)

// This file and entry_linux_*.s answer the kubelet's probes. Go's runtime and the packages of this program take 12 ms to start, and
// the kubelet runs `node-cache ready` every 10 s. So releases are linked with -E main.entry: the program begins with answerProbe, and
// the runtime starts if that returns. It exits for one case only, `ready` or `ready --live` whose agent says yes.
// All else, such as the reason of a no, is for the command.
//
// No runtime means no heap, goroutine, map, interface, defer or panic. TestReadyEntry of test/e2e runs the linked program.

// What compiled code uses of a thread and its goroutine: the latter has no end of its stack, as the kernel extends that.
var (
	entryThread    [2]uintptr //nolint:gochecknoglobals,unused // there is no heap yet, and assembly uses it
	entryGoroutine [1024]byte //nolint:gochecknoglobals,unused // the same
)

// A startStack is what the kernel leaves on a new program's stack: the number of arguments, the arguments, nil, the environment, nil.
type startStack [1 << 16]*byte

// probeTimeout is how many microseconds each step may take. An agent that takes longer is asked by the command too, and the
// kubelet waits 5 s for both.
const probeTimeout = 300_000

// answerProbe exits with cli.ExitOK if this is a probe, and the agent is what it asks for.
//
//nolint:unused // assembly calls it
func answerProbe(stack *startStack) {
	request, answer := probeRequest(stack)
	if request == "" {
		return
	}
	socket := environment(stack, adminVariable+"=unix:/")
	if socket == nil || !accepts((*byte)(unsafe.Add(unsafe.Pointer(socket), -1)), request) {
		return
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(unsafe.StringData(answer))), uintptr(len(answer)))
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
}

// probeRequest returns the request that the arguments stand for, and what the command prints for a yes; "": they are no probe.
func probeRequest(stack *startStack) (request, answer string) {
	arguments := uintptr(unsafe.Pointer(stack[0]))
	switch {
	case arguments == 2 && equal(stack[2], "ready"):
		return "GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n", "ready\n"
	case arguments == 3 && equal(stack[2], "ready") && equal(stack[3], "--live"):
		return "GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n", "live\n"
	}
	return "", ""
}

// environment returns what follows a prefix in the environment, nil if nothing does.
func environment(stack *startStack, prefix string) *byte {
	arguments := int(uintptr(unsafe.Pointer(stack[0]))) //nolint:gosec // the kernel allows fewer than 2^31
	for i := arguments + 2; i < len(stack) && stack[i] != nil; i++ {
		if hasPrefix(stack[i], prefix) {
			return (*byte)(unsafe.Add(unsafe.Pointer(stack[i]), len(prefix)))
		}
	}
	return nil
}

func equal(text *byte, want string) bool {
	return hasPrefix(text, want) && *(*byte)(unsafe.Add(unsafe.Pointer(text), len(want))) == 0
}

func hasPrefix(text *byte, prefix string) bool {
	for i := range len(prefix) {
		if *(*byte)(unsafe.Add(unsafe.Pointer(text), i)) != prefix[i] {
			return false
		}
	}
	return true
}

// accepts reports whether the server at a unix socket answers a request with 200. It reads once, and at most that far.
func accepts(path *byte, request string) bool {
	address := syscall.RawSockaddrUnix{Family: syscall.AF_UNIX}
	for i := range len(address.Path) {
		c := *(*int8)(unsafe.Add(unsafe.Pointer(path), i))
		if address.Path[i] = c; c == 0 {
			break
		}
	}
	if address.Path[len(address.Path)-1] != 0 { // longer than addresses are
		return false
	}
	fd, _, errno := syscall.RawSyscall(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if errno != 0 {
		return false
	}
	timeout := syscall.Timeval{Usec: probeTimeout}
	for option := uintptr(syscall.SO_RCVTIMEO); option <= syscall.SO_SNDTIMEO; option++ { // connect(2) waits for the latter
		_, _, _ = syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&timeout)), unsafe.Sizeof(timeout), 0)
	}
	var reply [len(acceptance)]byte
	_, _, errno = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address))
	if errno == 0 {
		_, _, errno = syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.StringData(request))), uintptr(len(request)), syscall.MSG_NOSIGNAL, 0, 0)
	}
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&reply)), uintptr(len(reply)))
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	return errno == 0 && isAcceptance(&reply)
}

// acceptance is the beginning of the admin server's reply to a request of HTTP/1.0.
const acceptance = "HTTP/1.0 200 OK\r\n"

// isAcceptance compares by bytes. Any other reply is for net/http to judge.
func isAcceptance(reply *[len(acceptance)]byte) bool {
	for i := range len(acceptance) {
		if reply[i] != acceptance[i] {
			return false
		}
	}
	return true
}
