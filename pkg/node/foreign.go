// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/sockdiag"
)

// foreignInterval is the time between two reads of the sockets on the agent's port.
const foreignInterval = 5 * time.Second

// ForeignSockets tracks the sockets of other processes at the addresses of the agent's DNS servers.
type ForeignSockets struct {
	UDP []*server.UDP
	TCP []*server.TCP // as many as UDP, at the same addresses
	Log *slog.Logger

	current atomic.Pointer[[]sockdiag.Socket]
	failed  bool // the last call of read failed; only read uses it
}

// Sockets returns the result of the last read.
func (f *ForeignSockets) Sockets() []sockdiag.Socket {
	if list := f.current.Load(); list != nil {
		return *list
	}
	return nil
}

// Run reads the sockets every foreignInterval until ctx ends or handedOver is closed: from then on the
// successor may have sockets of its own.
func (f *ForeignSockets) Run(ctx context.Context, handedOver <-chan struct{}) {
	ticker := time.NewTicker(foreignInterval)
	defer ticker.Stop()
	for {
		f.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-handedOver:
			f.current.Store(nil)
			return
		case <-ticker.C:
		}
	}
}

// read lists the foreign sockets. If they changed, the servers attach their socket selectors again: the other
// process may have replaced the selector.
func (f *ForeignSockets) read(ctx context.Context) {
	list, err := f.list()
	if err != nil {
		if !f.failed {
			f.Log.WarnContext(ctx, "reading sockets of other processes failed", "err", err)
		}
		f.failed = true
		return
	}
	f.failed = false
	same := slices.EqualFunc(list, f.Sockets(), func(a, b sockdiag.Socket) bool { return a.Inode == b.Inode })
	f.current.Store(&list)
	if same {
		return
	}
	for i := range list {
		f.Log.WarnContext(ctx, "foreign socket on the agent's port", "socket", socketURL(&list[i]),
			"process", list[i].Owner(), "inode", list[i].Inode)
	}
	for i := range f.UDP {
		if err := f.UDP[i].AttachSelector(); err != nil {
			f.Log.WarnContext(ctx, "attaching socket selector failed", "addr", f.UDP[i].Addr(), "err", err)
		}
		if err := f.TCP[i].AttachSelector(); err != nil {
			f.Log.WarnContext(ctx, "attaching socket selector failed", "addr", f.TCP[i].Addr(), "err", err)
		}
	}
}

func (f *ForeignSockets) list() ([]sockdiag.Socket, error) {
	var list []sockdiag.Socket
	var ports []uint16
	addrs := make([]netip.Addr, 0, len(f.UDP))
	for _, u := range f.UDP {
		if port := u.Addr().Port(); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		addrs = append(addrs, u.Addr().Addr().Unmap())
	}
	for _, port := range ports {
		found, err := sockdiag.ListBound(port)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	own := f.own() // after the list, because the agent may open sockets meanwhile
	list = slices.DeleteFunc(list, func(s sockdiag.Socket) bool {
		return own[s.Inode] || !slices.ContainsFunc(addrs, s.Accepts)
	})
	if len(list) > 0 {
		sockdiag.AddProcesses(list, "/proc")
	}
	return list, nil
}

// Conflict returns an error if a foreign socket has exactly the address of u.
func (f *ForeignSockets) Conflict(u *server.UDP) error {
	list, err := f.list()
	for i := range list {
		if s := &list[i]; !s.TCP && s.Local == netip.AddrPortFrom(u.Addr().Addr().Unmap(), u.Addr().Port()) {
			return fmt.Errorf("%s is also bound to %s", s.Owner(), socketURL(s))
		}
	}
	return err
}

// own returns the inodes of the servers' sockets. A predecessor or successor shares these sockets.
func (f *ForeignSockets) own() map[uint64]bool {
	own := map[uint64]bool{}
	note := func(raw syscall.RawConn) {
		if inode, err := sockdiag.Inode(raw); err == nil {
			own[inode] = true
		}
	}
	for i := range f.UDP {
		for _, raw := range f.UDP[i].RawConns() {
			note(raw)
		}
		if raw := f.TCP[i].RawConn(); raw != nil {
			note(raw)
		}
	}
	return own
}

// Status describes the sockets of the last read.
func (f *ForeignSockets) Status() (list []status.Socket) {
	for _, s := range f.Sockets() {
		list = append(list, status.Socket{Socket: socketURL(&s), Process: s.Owner(), Inode: s.Inode})
	}
	return list
}

func socketURL(s *sockdiag.Socket) string {
	network := "udp"
	if s.TCP {
		network = "tcp"
	}
	return network + "://" + s.Local.String()
}
