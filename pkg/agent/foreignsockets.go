// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/sockets"
)

// foreignInterval is the time between two reads of the sockets on the agent's port.
const foreignInterval = 5 * time.Second

// A ForeignSocket is a socket of another process that is bound to the agent's address and port.
type ForeignSocket struct {
	Socket  string `json:"socket"`  // such as udp://169.254.20.10:53
	Process string `json:"process"` // or its user, if the process is not visible
	Inode   uint64 `json:"inode"`
}

// foreignSockets tracks the sockets of other processes at the agent's addresses.
type foreignSockets struct {
	udp []*server.UDP
	tcp []*server.TCP
	log *slog.Logger

	current atomic.Pointer[[]sockets.Socket]
	failed  bool // the last read failed; owned by read
}

// sockets returns the result of the last read.
func (f *foreignSockets) sockets() []sockets.Socket {
	if list := f.current.Load(); list != nil {
		return *list
	}
	return nil
}

// run reads the sockets every foreignInterval until ctx ends or handedOver is closed: from then on the
// successor may have sockets of its own.
func (f *foreignSockets) run(ctx context.Context, handedOver <-chan struct{}) {
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
func (f *foreignSockets) read(ctx context.Context) {
	list, err := f.list()
	if err != nil {
		if !f.failed {
			f.log.WarnContext(ctx, "reading sockets of other processes failed", "err", err)
		}
		f.failed = true
		return
	}
	f.failed = false
	same := slices.EqualFunc(list, f.sockets(), func(a, b sockets.Socket) bool { return a.Inode == b.Inode })
	f.current.Store(&list)
	if same {
		return
	}
	for i := range list {
		f.log.WarnContext(ctx, "foreign socket on the agent's port", "socket", socketURL(&list[i]),
			"process", list[i].Owner(), "inode", list[i].Inode)
	}
	for i := range f.udp {
		if err := f.udp[i].AttachSelector(); err != nil {
			f.log.WarnContext(ctx, "attaching socket selector failed", "addr", f.udp[i].Addr(), "err", err)
		}
		if err := f.tcp[i].AttachSelector(); err != nil {
			f.log.WarnContext(ctx, "attaching socket selector failed", "addr", f.tcp[i].Addr(), "err", err)
		}
	}
}

func (f *foreignSockets) list() ([]sockets.Socket, error) {
	var list []sockets.Socket
	var ports []uint16
	addrs := make([]netip.Addr, 0, len(f.udp))
	for _, u := range f.udp {
		if port := u.Addr().Port(); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		addrs = append(addrs, unmapped(u.Addr()).Addr())
	}
	for _, port := range ports {
		found, err := sockets.ListBound(port)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	own := f.own() // after the list, because the agent may open sockets meanwhile
	list = slices.DeleteFunc(list, func(s sockets.Socket) bool {
		return own[s.Inode] || !slices.ContainsFunc(addrs, s.Accepts)
	})
	if len(list) > 0 {
		sockets.AddProcesses(list, "/proc")
	}
	return list, nil
}

// conflict returns an error if a foreign socket has exactly the address of u.
func (f *foreignSockets) conflict(u *server.UDP) error {
	list, err := f.list()
	for i := range list {
		if s := &list[i]; !s.TCP && s.Local == unmapped(u.Addr()) {
			return fmt.Errorf("%s is also bound to %s", s.Owner(), socketURL(s))
		}
	}
	return err
}

// own returns the inodes of the servers' sockets. A predecessor or successor shares these sockets.
func (f *foreignSockets) own() map[uint64]bool {
	own := map[uint64]bool{}
	note := func(raw syscall.RawConn) {
		if inode, err := sockets.Inode(raw); err == nil {
			own[inode] = true
		}
	}
	for i := range f.udp {
		for _, raw := range f.udp[i].RawConns() {
			note(raw)
		}
		if raw := f.tcp[i].RawConn(); raw != nil {
			note(raw)
		}
	}
	return own
}

func (f *foreignSockets) status() (list []ForeignSocket) {
	for _, s := range f.sockets() {
		list = append(list, ForeignSocket{Socket: socketURL(&s), Process: s.Owner(), Inode: s.Inode})
	}
	return list
}

func socketURL(s *sockets.Socket) string {
	network := "udp"
	if s.TCP {
		network = "tcp"
	}
	return network + "://" + s.Local.String()
}

// foreignProblems reports the processes that share the agent's port.
func foreignProblems(list []ForeignSocket) (problems []Problem) {
	for _, s := range list {
		problems = append(problems, Problem{
			Where: "listen", What: fmt.Sprintf("%s is also bound to %s (socket inode %d)", s.Process, s.Socket, s.Inode),
			Hint: "stop that program, or configure another address for it; on the node, `ss -lnptue` shows the process of the inode (ino)",
		})
	}
	return problems
}
