// SPDX-License-Identifier: Apache-2.0

package kernelhits

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
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/pkg/retry"
)

// minMTU is the smallest MTU of an interface that gets the programs: every reply fits.
const minMTU = 1280

// relistInterval is the time between two reads of all interfaces. Events report changes in between.
const relistInterval = 2 * time.Second

// An interface gets the programs again when another process has detached them or has taken their place. If that happens again and again,
// it gets them once in attachInterval, and is without hits in between.
const (
	attachBurst    = 6 // times without a delay
	attachInterval = 30 * time.Second
)

// links attaches the programs to the interfaces of pods: the veths whose other end is in another network namespace.
type links struct {
	k *Responder

	mu       sync.Mutex // guards the fields below
	attached map[int]*attachment
	failed   map[int]string        // why an interface has no program
	attempts map[int]*rate.Limiter // of attachLocked, by interface
	filtered map[int]bool          // interfaces with filters of others at egress, as of the last relist
	legacy   bool                  // the kernel does not support tcx; programs are attached as clsact filters

	releasing sync.WaitGroup // releases of programs whose interface is gone

	buffer    int           // receive buffer of the subscription in bytes; not changed after init
	blockedIn time.Duration // see reach; not changed after init
}

// An attachment is the two programs of an interface.
type attachment struct {
	name     string
	programs []attachedProgram
	counted  [2]hitsClient // counters at the last count: IPv4, IPv6
	reach    [2]reach      // IPv4, IPv6
	blocked  string        // why hits are impossible, see reach; empty: they are not
}

// An attachedProgram is a program at one side of an interface.
type attachedProgram interface {
	detach() error
	release() error  // closes what belongs to an interface that is gone
	problem() string // why it must be attached again: it is detached, or not where it must be; empty: no problem
	follows() bool   // reports whether programs of others run before it
}

// The problems of a program. See place for the place.
const (
	problemDetached = "another process detaches the program"
	problemIngress  = "another program takes the first place at ingress"
	problemEgress   = "another program takes the last place at egress"
)

// A tcxLink is a program attached to tcx. The kernel detaches it when this process ends.
type tcxLink struct {
	link.Link

	id    link.ID
	index int
	side  ebpf.AttachType
}

func (l *tcxLink) detach() error  { return l.Close() }
func (l *tcxLink) release() error { return l.Close() }

// place returns the place of the programs at one side of an interface. At ingress the program must be the first: that of a data plane
// ends the chain for what it lets through. At egress it must be the last: only then it sees which replies the others let through.
func place(side ebpf.AttachType) link.Anchor {
	if side == ebpf.AttachTCXIngress {
		return link.Head()
	}
	return link.Tail()
}

func attachTCX(index int, p *ebpf.Program, side ebpf.AttachType) (*tcxLink, error) {
	attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: side, Anchor: place(side)})
	if err != nil {
		return nil, err
	}
	info, err := attached.Info()
	if err != nil {
		_ = attached.Close()
		return nil, err
	}
	return &tcxLink{Link: attached, id: info.ID, index: index, side: side}, nil
}

// problem asks the kernel. After an error there is none: the interface may be gone, which an event reports.
func (l *tcxLink) problem() string {
	at, count, err := l.position()
	switch {
	case err != nil:
	case at < 0:
		return problemDetached
	case l.side == ebpf.AttachTCXIngress && at > 0:
		return problemIngress
	case l.side == ebpf.AttachTCXEgress && at < count-1:
		return problemEgress
	}
	return ""
}

func (l *tcxLink) follows() bool {
	at, _, err := l.position()
	return err == nil && at > 0
}

// position returns the index of the program among those at its side of the interface, -1 if it is not there, and their number.
func (l *tcxLink) position() (at, count int, err error) {
	list, err := link.QueryPrograms(link.QueryOptions{Target: l.index, Attach: l.side})
	if err != nil {
		return -1, 0, err
	}
	at = slices.IndexFunc(list.Programs, func(p link.AttachedProgram) bool {
		id, _ := p.LinkID()
		return id == l.id
	})
	return at, len(list.Programs), nil
}

func (l *links) init(k *Responder) {
	l.k, l.buffer, l.blockedIn = k, 1<<20, 10*time.Second
	l.attached, l.failed, l.attempts = map[int]*attachment{}, map[int]string{}, map[int]*rate.Limiter{}
}

// Interfaces returns how many interfaces of pods can have hits, and for each other one why it cannot.
func (k *Responder) Interfaces() (able int, failed []string) {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	for _, why := range k.links.failed {
		failed = append(failed, why)
	}
	for _, a := range k.links.attached {
		if a.blocked != "" {
			failed = append(failed, a.name+": "+a.blocked)
		} else {
			able++
		}
	}
	slices.Sort(failed)
	return able, failed
}

// Hook returns how the programs are attached: as tcx links, which end with this process, or as filters of clsact.
func (k *Responder) Hook() string {
	k.links.mu.Lock()
	defer k.links.mu.Unlock()
	if k.links.legacy {
		return hookClsact
	}
	return hookTCX
}

// watch attaches the programs to the interfaces that are there, and to new ones, until ctx ends.
func (l *links) watch(ctx context.Context) {
	backoff := retry.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}
	for ctx.Err() == nil {
		backoff.Begin()
		err := l.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		l.k.log.WarnContext(ctx, "watching interfaces failed", "err", err)
		_ = retry.Sleep(ctx, backoff.Next())
	}
}

// subscribe follows interfaces until ctx ends, or the socket fails, for example because events were lost.
func (l *links) subscribe(ctx context.Context) error {
	updates, done, failed := make(chan netlink.LinkUpdate, 256), make(chan struct{}), make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ReceiveBufferSize: l.buffer,
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
	defer func() {
		close(done)
		go func() { // updates is read to its end, because the sender does not check done while it sends
			for range updates {
			}
		}()
	}()
	relist := time.NewTicker(relistInterval)
	defer relist.Stop()
	for err = l.relist(ctx); err == nil; {
		select {
		case <-ctx.Done():
			return nil
		case err = <-failed:
		case u, ok := <-updates:
			if !ok {
				return errors.New("the subscription ended")
			}
			if u.Family == unix.AF_UNSPEC { // an event of family AF_BRIDGE is about a port of a bridge
				l.k.guard(ctx, func() { l.apply(ctx, u.Link, u.Header.Type == unix.RTM_NEWLINK) })
			}
		case <-relist.C:
			err = l.relist(ctx)
		}
	}
	return err
}

// relist reads all interfaces, also those whose event was lost. It attaches programs again that another process has detached, or whose
// place another program has taken.
func (l *links) relist(ctx context.Context) error {
	list, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return err
	}
	filtered := filteredLinks()
	l.mu.Lock()
	l.filtered = filtered
	l.mu.Unlock()
	seen := map[int]bool{}
	for _, dev := range list {
		seen[dev.Attrs().Index] = true
		l.k.guard(ctx, func() { l.apply(ctx, dev, true) })
	}
	if err == nil { // after an interrupted dump some interfaces are missing: the next list has them
		l.keep(seen)
	}
	return nil
}

// keep releases all interfaces that are not in seen.
func (l *links) keep(seen map[int]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index := range l.attached {
		if !seen[index] {
			l.releaseLocked(index)
		}
	}
	maps.DeleteFunc(l.failed, func(index int, _ string) bool { return !seen[index] })
	maps.DeleteFunc(l.attempts, func(index int, _ *rate.Limiter) bool { return !seen[index] })
}

// apply attaches or detaches the programs of an interface. exists is false if the interface is gone.
func (l *links) apply(ctx context.Context, dev netlink.Link, exists bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	attrs := dev.Attrs()
	wanted := exists && dev.Type() == "veth" && attrs.NetNsID >= 0 && attrs.MTU >= minMTU
	problem := ""
	if a := l.attached[attrs.Index]; a != nil {
		problem = a.problem()
		if _, isFilter := a.programs[0].(*filter); problem == "" && l.filtered[attrs.Index] && !isFilter {
			problem = problemEgress // filters run after it
		}
		switch {
		case !exists:
			l.releaseLocked(attrs.Index)
		case wanted && problem == "":
			l.checkReach(attrs.Index, a)
			return
		default: // the permits end, too: they are not worth more than the place at which they were seen
			l.detachLocked(attrs.Index)
		}
	}
	if !exists {
		delete(l.attempts, attrs.Index)
	}
	if wanted && !l.mayAttach(attrs.Index) {
		if problem != "" { // else the reason is known
			l.failed[attrs.Index] = attrs.Name + ": " + problem + " again and again"
		}
		return
	}
	delete(l.failed, attrs.Index)
	if exists && dev.Type() == "netkit" && attrs.NetNsID >= 0 {
		l.failed[attrs.Index] = attrs.Name + ": the program does not support netkit"
	}
	if !wanted {
		return
	}
	if err := l.attachLocked(attrs.Index, attrs.Name); err != nil {
		l.failed[attrs.Index] = fmt.Sprintf("%s: %v", attrs.Name, err)
		l.k.log.DebugContext(ctx, "interface not served by the kernel", "interface", attrs.Name, "err", err)
	}
}

// mayAttach reports whether an interface may get the programs now.
func (l *links) mayAttach(index int) bool {
	limit := l.attempts[index]
	if limit == nil {
		limit = rate.NewLimiter(rate.Every(attachInterval), attachBurst)
		l.attempts[index] = limit
	}
	return limit.AllowN(l.k.cfg.Now(), 1)
}

// problem returns the first problem of the programs; empty: none.
func (a *attachment) problem() string {
	for _, p := range a.programs {
		if problem := p.problem(); problem != "" {
			return problem
		}
	}
	return ""
}

// families returns the IP families. A client's key is an interface and one of them.
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
	// Egress first: the program there permits a client, before the one at ingress may answer it.
	for _, p := range []struct {
		program *ebpf.Program
		at      ebpf.AttachType
		parent  uint32
	}{
		{l.k.objects.PermitClient, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
		{l.k.objects.AnswerHit, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	} {
		attached, err := l.attachProgram(index, p.program, p.at, p.parent)
		if err != nil {
			return err
		}
		a.programs = append(a.programs, attached)
	}
	return nil
}

// attachProgram attaches a BPF program: to tcx or, if the kernel has none, to clsact, behind the filters of CNI plugins and others. The
// kernel runs filters after tcx, so the program at egress becomes a filter where others are.
func (l *links) attachProgram(index int, p *ebpf.Program, side ebpf.AttachType, parent uint32) (attachedProgram, error) {
	if !l.legacy && (side != ebpf.AttachTCXEgress || !hasFilters(index)) {
		attached, err := attachTCX(index, p, side)
		if err == nil {
			return attached, nil
		}
		if !errors.Is(err, link.ErrNotSupported) {
			return nil, err
		}
		l.legacy = true
	}
	return attachFilter(index, p, parent)
}

func (l *links) detachLocked(index int) {
	for _, p := range slices.Backward(l.attached[index].programs) {
		_ = p.detach() // the interface may be gone
	}
	l.forgetLocked(index)
}

// releaseLocked forgets an interface that is gone, and closes its programs in the background: closing them waits until the kernel has
// removed the interface, and meanwhile the next pod would get no programs.
func (l *links) releaseLocked(index int) {
	programs := l.attached[index].programs
	l.releasing.Go(func() {
		for _, p := range programs {
			_ = p.release() // nothing else can be done
		}
	})
	l.forgetLocked(index)
}

func (l *links) forgetLocked(index int) {
	l.countLocked(index, l.attached[index])
	for _, family := range families() {
		_ = l.k.objects.Clients.Delete(hitsClientKey{Ifindex: uint32(index), Family: family})
	}
	l.releaseAddresses(index)
	delete(l.attached, index)
}

// releaseAddresses deletes the entries for the addresses that an interface holds, so that other interfaces may hold them.
func (l *links) releaseAddresses(index int) {
	var addr hitsAddress
	var holder hitsHolder
	var held []hitsAddress
	for all := l.k.objects.Holders.Iterate(); all.Next(&addr, &holder); {
		if holder.Ifindex == uint32(index) {
			held = append(held, addr)
		}
	}
	for _, addr := range held {
		_ = l.k.objects.Holders.Delete(addr) // the entry may be gone
	}
}

func (l *links) detachAll() {
	defer l.releasing.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for index := range l.attached {
		l.detachLocked(index)
	}
}

// count reports the kernel's replies since the last call, by client, to Config.Attribute.
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
