// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/mmsg"
)

// batchSize is how many queries of a client are under way at a time.
const batchSize = 64

// A batch sends many queries with one system call. The ID of a query is its index.
type batch struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	out  *mmsg.Outbox
	in   *mmsg.Inbox
}

func (p *pod) newBatch(t *testing.T, family int) *batch {
	t.Helper()
	b := &batch{conn: p.dial(t, family), out: mmsg.NewOutbox(batchSize, batchSize*512), in: mmsg.NewInbox(batchSize, 4096)}
	var err error
	b.raw, err = b.conn.SyscallConn()
	assert.NoError(t, err)
	assert.NoError(t, b.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) }))
	assert.NoError(t, err)
	return b
}

// exchange sends the queries and passes each reply to take.
func (b *batch) exchange(queries [][]byte, take func(i int, reply []byte)) error {
	b.out.Reset()
	for i, pkt := range queries {
		binary.BigEndian.PutUint16(pkt, uint16(i))
		b.out.Add(append(b.out.Buffer(), pkt...))
	}
	if err := b.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	sent, left := 0, len(queries)
	for left > 0 {
		var errno syscall.Errno
		if sent < b.out.Len() {
			if err := b.raw.Write(func(fd uintptr) bool {
				sent, errno = b.out.Send(fd, sent)
				return errno != syscall.EAGAIN
			}); err != nil {
				return err
			}
		}
		n := 0
		err := b.raw.Read(func(fd uintptr) bool {
			n, errno = b.in.Receive(fd)
			return errno != syscall.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("%d of %d queries without a reply", left, len(queries))
		case err != nil:
			return err
		case errno != 0:
			return errno
		}
		for j := range n {
			reply := b.in.Datagram(j)
			i := int(binary.BigEndian.Uint16(reply))
			if i >= len(queries) {
				return fmt.Errorf("a reply with the ID %d", i)
			}
			take(i, reply)
		}
		left -= n
	}
	return nil
}
