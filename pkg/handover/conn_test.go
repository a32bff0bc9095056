// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestOtherUser refuses to talk to a process of another user.
func TestOtherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	for _, user := range []int{0, 65534} {
		c, err := newConn(connOf(t, user), time.Now)
		if (user == 0) != (err == nil) || user != 0 && !errors.Is(err, errOtherUser) {
			t.Errorf("user %d: %v", user, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// connOf is a connection to a process of the user.
func connOf(t *testing.T, user int) *net.UnixConn {
	t.Helper()
	pair := make(chan [2]int)
	go func() {
		runtime.LockOSThread() // for good: the thread is the user's and ends with the goroutine
		id := uintptr(user)
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id) // of this thread alone
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if errno != 0 || err != nil {
			t.Error(errno, err)
		}
		pair <- fds
	}()
	fds := <-pair
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	f := os.NewFile(uintptr(fds[0]), "pair")
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	assert.NoError(t, err)
	u, ok := c.(*net.UnixConn)
	if !ok {
		t.Fatalf("a connection of type %T", c)
	}
	return u
}
