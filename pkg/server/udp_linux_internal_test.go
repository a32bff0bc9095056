// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package server

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestReaderWaits checks when a reader waits for the poller. After a full batch it must
// not wait: there may be more datagrams, which the poller would not report again.
func TestReaderWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		received int
		due      int64
		want     bool
	}{
		{1, 0, true},
		{1, 5, true},
		{minBusyBatch - 1, 0, true},
		{minBusyBatch, 0, false},
		{minBusyBatch, 1, true},
		{batchSize - 1, 0, false},
		{batchSize - 1, 1, true},
		{batchSize, 0, false},
		{batchSize, 1000, false},
	} {
		s := &udpSocket{server: &UDP{}}
		s.server.repliesDue.Store(tt.due)
		assert.Equal(t, fmt.Sprintf("%d received, %d due", tt.received, tt.due), tt.want, s.shouldPoll(&udpBatch{received: tt.received}))
	}
}

// TestReceiveBuffer reads what the kernel gives each socket, which is twice what was
// asked for. The least that any system's limit allows is asked for here.
func TestReceiveBuffer(t *testing.T) {
	t.Parallel()
	const asked = 96 << 10
	u := listenReaders(t, UDPConfig{Addr: netip.MustParseAddrPort("127.0.0.1:0"), Readers: 3, ReceiveBuffer: asked})
	for i, s := range u.sockets() {
		var got int
		var failed error
		err := s.raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
		if err != nil || failed != nil || got != 2*asked {
			t.Errorf("socket %d may hold %d bytes (%v, %v), want %d", i, got, err, failed, 2*asked)
		}
	}
}

// noWorkers is a handler of nothing.
type noWorkers struct{}

func (noWorkers) NewWorker() Worker { return nil }

// listenReaders opens the sockets of a server that is not run.
func listenReaders(t *testing.T, cfg UDPConfig) *UDP {
	t.Helper()
	cfg.Handler = noWorkers{}
	u, err := NewUDP(cfg)
	if err == nil {
		err = u.Listen(t.Context())
	}
	assert.NoError(t, err)
	t.Cleanup(u.Close)
	return u
}
