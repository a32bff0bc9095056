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

// foreignEvery is the time between two reads of the sockets on the agent's port.
const foreignEvery = 5 * time.Second

// ForeignSocket is one of another process that is bound to an address and port of the agent's.
type ForeignSocket struct {
	Socket  string `json:"socket"`  // such as udp://169.254.20.10:53
	Process string `json:"process"` // or its user, if it is not visible
	Inode   uint64 `json:"inode"`
}

// foreign knows the sockets of other processes at the agent's addresses.
type foreign struct {
	udp []*server.UDP
	tcp []*server.TCP
	log *slog.Logger

	list   atomic.Pointer[[]sockets.Socket]
	failed bool // the last read; read's own
}

// sockets are those of the last read.
func (f *foreign) sockets() []sockets.Socket {
	if list := f.list.Load(); list != nil {
		return *list
	}
	return nil
}

// run reads again and again until ctx ends or given is closed: then the successor may
// have sockets of its own.
func (f *foreign) run(ctx context.Context, given <-chan struct{}) {
	ticker := time.NewTicker(foreignEvery)
	defer ticker.Stop()
	for {
		f.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-given:
			f.list.Store(nil)
			return
		case <-ticker.C:
		}
	}
}

// read finds out which sockets there are now. When they are others than before, the
// servers select their own again: a process that has come may have replaced the selector.
func (f *foreign) read(ctx context.Context) {
	list, err := f.find()
	if err != nil {
		if !f.failed {
			f.log.WarnContext(ctx, "sockets of other processes are not known", "err", err)
		}
		f.failed = true
		return
	}
	f.failed = false
	same := slices.EqualFunc(list, f.sockets(), func(a, b sockets.Socket) bool { return a.Inode == b.Inode })
	f.list.Store(&list)
	if same {
		return
	}
	for i := range list {
		f.log.WarnContext(ctx, "another process is bound to the agent's port", "socket", spellSocket(&list[i]),
			"process", list[i].Owner(), "inode", list[i].Inode)
	}
	for i := range f.udp {
		if err := f.udp[i].AttachSelector(); err != nil {
			f.log.WarnContext(ctx, "socket selector refused", "addr", f.udp[i].Addr(), "err", err)
		}
		if err := f.tcp[i].AttachSelector(); err != nil {
			f.log.WarnContext(ctx, "socket selector refused", "addr", f.tcp[i].Addr(), "err", err)
		}
	}
}

func (f *foreign) find() ([]sockets.Socket, error) {
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
	own := f.own() // after the list, as the agent may open more
	list = slices.DeleteFunc(list, func(s sockets.Socket) bool {
		return own[s.Inode] || !slices.ContainsFunc(addrs, s.Accepts)
	})
	if len(list) > 0 {
		sockets.AddProcesses(list, "/proc")
	}
	return list, nil
}

// shares returns an error if a socket of another process has the very address of u's.
func (f *foreign) shares(u *server.UDP) error {
	list, err := f.find()
	for i := range list {
		if s := &list[i]; !s.TCP && s.Local == unmapped(u.Addr()) {
			return fmt.Errorf("%s is bound to %s as well", s.Owner(), spellSocket(s))
		}
	}
	return err
}

// own are the inodes of the servers' sockets. Another agent that gave them, or has them
// to take over, has the same.
func (f *foreign) own() map[uint64]bool {
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

func (f *foreign) status() (list []ForeignSocket) {
	for _, s := range f.sockets() {
		list = append(list, ForeignSocket{Socket: spellSocket(&s), Process: s.Owner(), Inode: s.Inode})
	}
	return list
}

func spellSocket(s *sockets.Socket) string {
	network := "udp"
	if s.TCP {
		network = "tcp"
	}
	return network + "://" + s.Local.String()
}

// foreignProblems names the processes that share the agent's port.
func foreignProblems(list []ForeignSocket) (problems []Problem) {
	for _, s := range list {
		problems = append(problems, Problem{
			Where: "listen", What: fmt.Sprintf("%s is bound to %s as well, by socket inode %d", s.Process, s.Socket, s.Inode),
			Hint: "stop that program, or have it listen elsewhere: `ss -lnptue` on the node has the process of the inode (ino)",
		})
	}
	return problems
}
