// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/task"
)

// minMTU is the smallest MTU of an interface that every reply fits.
const minMTU = 1280

// links attaches the programs to the interfaces of pods: the veths whose other end is in another network namespace.
type links struct {
	k *Kernel

	mu       sync.Mutex // guards the fields below
	attached map[int]*attachment
	failed   map[int]string // why an interface has no program
	legacy   bool           // the kernel has no tcx: filters of clsact
}

// An attachment is the two programs of an interface.
type attachment struct {
	name    string
	detach  []func() error
	counted [2]hitsClient // as of the last count; IPv4, IPv6
}

func (l *links) init(k *Kernel) {
	l.k, l.attached, l.failed = k, map[int]*attachment{}, map[int]string{}
}

// Interfaces returns how many interfaces have the programs, and why others of pods have not.
func (k *Kernel) Interfaces() (attached int, failed []string) {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	return len(k.links.attached), slices.Sorted(maps.Values(k.links.failed))
}

// Hook returns how the programs are attached: as tcx links, which end with this process, or as filters of clsact.
func (k *Kernel) Hook() string {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	if k.links.legacy {
		return "clsact"
	}
	return "tcx"
}

// watch attaches the programs to the interfaces that are there, and to new ones, until ctx ends.
func (l *links) watch(ctx context.Context) {
	retry := task.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}
	for ctx.Err() == nil {
		err := l.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		l.k.log.WarnContext(ctx, "watching interfaces failed", "err", err)
		_ = task.Sleep(ctx, retry.Next())
	}
}

// subscribe is watch until the socket fails: it may lose events.
func (l *links) subscribe(ctx context.Context) error {
	updates, done, failed := make(chan netlink.LinkUpdate, 256), make(chan struct{}), make(chan error, 1)
	defer close(done)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ListExisting: true, ReceiveBufferSize: 1 << 20,
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case u, ok := <-updates:
			if !ok {
				return errors.New("the subscription ended")
			}
			l.apply(ctx, &u)
		}
	}
}

// apply follows a change of an interface.
func (l *links) apply(ctx context.Context, u *netlink.LinkUpdate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	attrs := u.Attrs()
	a := l.attached[attrs.Index]
	switch wanted := u.Header.Type == unix.RTM_NEWLINK && u.Type() == "veth" && attrs.NetNsID >= 0 && attrs.MTU >= minMTU; {
	case !wanted && a != nil:
		l.detachLocked(attrs.Index)
	case wanted && a == nil:
		delete(l.failed, attrs.Index)
		if err := l.attachLocked(attrs.Index, attrs.Name); err != nil {
			l.failed[attrs.Index] = fmt.Sprintf("%s: %v", attrs.Name, err)
			l.k.log.DebugContext(ctx, "interface not served by the kernel", "interface", attrs.Name, "err", err)
		}
	case !wanted:
		delete(l.failed, attrs.Index)
	}
}

// families are the second part of a client's key.
func families() [2]uint32 { return [2]uint32{4, 6} }

func (l *links) attachLocked(index int, name string) (err error) {
	a := &attachment{name: name}
	l.attached[index] = a
	defer func() {
		if err != nil {
			l.detachLocked(index)
		}
	}()
	for _, family := range families() {
		if err := l.k.objects.Clients.Put(hitsClientKey{Ifindex: uint32(index), Family: family}, hitsClient{}); err != nil {
			return err
		}
	}
	// Egress first: a client is permitted before it is answered.
	for _, p := range []struct {
		program *ebpf.Program
		at      ebpf.AttachType
		parent  uint32
	}{
		{l.k.objects.PermitClient, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
		{l.k.objects.AnswerHit, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	} {
		detach, err := l.attachProgram(index, p.program, p.at, p.parent)
		if err != nil {
			return err
		}
		a.detach = append(a.detach, detach)
	}
	return nil
}

// attachProgram attaches a program after those of others.
func (l *links) attachProgram(index int, p *ebpf.Program, at ebpf.AttachType, parent uint32) (detach func() error, err error) {
	if !l.legacy {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: at, Anchor: link.Tail()})
		if err == nil {
			return attached.Close, nil
		}
		if !errors.Is(err, link.ErrNotSupported) {
			return nil, err
		}
		l.legacy = true
	}
	return attachFilter(index, p, parent)
}

func (l *links) detachLocked(index int) {
	a := l.attached[index]
	l.countLocked(index, a)
	for _, detach := range a.detach {
		_ = detach() // the interface may be gone
	}
	for _, family := range families() {
		_ = l.k.objects.Clients.Delete(hitsClientKey{Ifindex: uint32(index), Family: family})
	}
	delete(l.attached, index)
}

func (l *links) detachAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index := range l.attached {
		l.detachLocked(index)
	}
}

// count attributes what the kernel has answered to its clients.
func (l *links) count() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index, a := range l.attached {
		l.countLocked(index, a)
	}
}

func (l *links) countLocked(index int, a *attachment) {
	for i, family := range families() {
		var c hitsClient
		if l.k.objects.Clients.Lookup(hitsClientKey{Ifindex: uint32(index), Family: family}, &c) != nil {
			continue
		}
		was := &a.counted[i]
		if c.Hits != was.Hits {
			l.k.cfg.Attribute(Client{
				Addr: c.Addr.addr(), Answered: c.Hits - was.Hits, Denied: c.Denied - was.Denied,
				Searched: c.Searched - was.Searched, Bytes: c.Bytes - was.Bytes,
			})
		}
		*was = c
	}
}
