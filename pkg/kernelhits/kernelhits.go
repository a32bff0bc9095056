// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// AnswerSize is the memory that the kernel takes for an answer, in bytes.
const AnswerSize = 1024

// MaxSize is the largest Config.Size: there are counters for maxAnswers answers.
const MaxSize = maxAnswers * AnswerSize

// Memory returns the memory that the kernel takes for Config.Size, in bytes: the answers, and two counters of each on every CPU.
func Memory(size int64) int64 { return size + size/AnswerSize*2*8*int64(ebpf.MustPossibleCPU()) }

// Constants of bpf/hits.c.
const (
	maxName    = len(hitsKey{}.Name)
	maxData    = len(hitsAnswer{}.Data)
	maxRecords = len(hitsAnswer{}.Ttl)
	maxAnswers = 8192
	slotCount  = 8192
	optLen     = 11
	nameHash   = 0x9e3779b97f4a7c15
	maxQuery   = 12 + maxName + 4 + optLen
)

// A Source gives the answers. A [resolve.Worker] is one; see [resolve.Worker.SharedReply].
type Source interface {
	SharedReply(pkt []byte, now time.Time, dst []byte) ([]byte, resolve.Shared, bool)
}

// Config configures a Responder.
type Config struct {
	Source  Source
	Owner   func(name []byte) []byte // returns the cluster object that a name belongs to, its owner; nil: none; see Changed and [resolve.Plan.Owner]
	Size    int64                    // bytes of answers, at most MaxSize
	Permit  time.Duration            // initial value of SetPermit
	Lease   time.Duration            // the kernel answers only this long after a heartbeat, see Beat; then every query goes to the agent
	Port    uint16                   // port of the agent's sockets
	Sockets func() []syscall.RawConn // the agent's UDP sockets, to recognize its replies
	Busy    func() time.Duration     // longest time that a reader has spent on its current batch
	Lapsed  func() bool              // reports whether the agent has lost the leases of its interception; if so, the kernel answers no query

	// Count is called with the hits of one question since its last call for it, Attribute with those of one client.
	Count     func(Hits)
	Attribute func(Client)

	Now func() time.Time
	Log *slog.Logger
}

// Hits are queries for one question that the kernel answered.
type Hits struct {
	Key        []byte // key in the cache: name in canonical wire form, type and flags
	Source     resolve.Source
	Type       uint16
	Rcode      int
	IPv4, IPv6 uint64 // number of hits, by the IP family of the client
	Inside     bool   // the name is in the cluster's domain
	Bytes      int    // size of one reply
}

// Client counts the replies of the kernel to one client.
type Client struct {
	Addr                              netip.Addr
	Answered, Denied, Searched, Bytes uint64 // replies; NXDOMAIN replies; those for names of the cluster domain; bytes of all replies
}

// A Responder answers hits in the kernel while it runs.
type Responder struct {
	cfg     Config
	log     *slog.Logger
	objects hitsObjects
	control *hitsControl       // memory that the BPF programs share
	version *[slotCount]uint64 // versions by slot; the BPF programs share this memory
	unmap   []func()
	seed    maphash.Seed

	offers chan offer
	table  table
	links  links
	panics atomic.Uint64 // recovered panics

	namesSwept time.Time // when sweepNames last ran; of the goroutine of Run

	mu           sync.Mutex               // guards the fields below
	destinations map[hitsDestination]bool // keys of objects.Destinations
	sockets      map[uint64]bool          // keys of objects.Sockets: socket cookies
}

// Open loads the programs. It attaches nothing yet. The error says what the kernel lacks.
func Open(cfg Config) (*Responder, error) {
	k := &Responder{
		cfg: cfg, log: cfg.Log, seed: maphash.MakeSeed(), offers: make(chan offer, 256),
		destinations: map[hitsDestination]bool{}, sockets: map[uint64]bool{},
	}
	spec, err := loadHits()
	if err != nil {
		return nil, err
	}
	most := uint32(cfg.Size / AnswerSize)
	spec.Maps[hitsMapAnswers].MaxEntries, spec.Maps[hitsMapHits].MaxEntries = most, 2*most
	if err := spec.LoadAndAssign(&k.objects, nil); err != nil {
		return nil, loadError(err)
	}
	control, err := k.mapMemory(k.objects.Controls, int(unsafe.Sizeof(hitsControl{})))
	if err == nil {
		k.control = (*hitsControl)(control)
		if control, err = k.mapMemory(k.objects.Versions, 8*slotCount); err == nil {
			k.version = (*[slotCount]uint64)(control)
		}
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	k.control.Lease, k.control.Port = uint64(cfg.Lease), uint32(cfg.Port)
	k.SetPermit(cfg.Permit)
	k.table.init(k, int(most))
	k.links.init(k)
	return k, nil
}

// mapMemory maps the values of an array into this process.
func (k *Responder) mapMemory(m *ebpf.Map, size int) (unsafe.Pointer, error) {
	size = (size + unix.Getpagesize() - 1) &^ (unix.Getpagesize() - 1)
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", m, err)
	}
	k.unmap = append(k.unmap, func() { _ = unix.Munmap(mem) })
	return unsafe.Pointer(&mem[0]), nil
}

// Close releases everything. The methods must not be called afterwards.
func (k *Responder) Close() {
	_ = k.objects.Close()
	for _, unmap := range k.unmap {
		unmap()
	}
}

// bootTime returns the time of CLOCK_BOOTTIME in ns, the clock of the BPF programs.
func bootTime() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it never fails
	return uint64(ts.Nano())
}

// Beat records a heartbeat: the agent answers, so the kernel may answer for Config.Lease from now.
func (k *Responder) Beat() { atomic.StoreUint64(&k.control.Heartbeat, bootTime()) }

// renew calls Beat unless a reader of the agent is stuck. If Config.Lapsed, it deletes the heartbeat: the kernel stops at once.
func (k *Responder) renew() {
	atomic.StoreUint64(&k.control.Clock, bootTime())
	if k.cfg.Lapsed() {
		atomic.StoreUint64(&k.control.Heartbeat, 0)
	} else if k.cfg.Busy() < k.cfg.Lease/2 {
		k.Beat()
	}
}

// SetPermit sets how long an interface gets answers after the agent has answered its pod.
func (k *Responder) SetPermit(d time.Duration) { atomic.StoreUint64(&k.control.Permit, uint64(d)) }

// Set turns the answers on or off, from the next packet on.
func (k *Responder) Set(on bool) {
	enabled := uint32(0)
	if on {
		enabled = 1
	}
	atomic.StoreUint32(&k.control.Enabled, enabled)
}

// zoneSlot is the slot of the one version of all zone answers that depend on more than one object.
const zoneSlot = 0

// slot returns the index of the version of a name or an owner. Several names may share a slot.
func (k *Responder) slot(name []byte) uint32 {
	return 1 + uint32(maphash.Bytes(k.seed, name)%(slotCount-1))
}

func (k *Responder) bump(slot uint32) { atomic.AddUint64(&k.version[slot], 1) }

// Changed ends the answers for a name, or those that depend on an owner (see Config.Owner); nil: all answers.
func (k *Responder) Changed(name []byte) {
	if name == nil {
		atomic.AddUint32(&k.control.Epoch, 1)
		return
	}
	k.bump(k.slot(name))
}

// ZoneChanging keeps answers of the zones from being given until ZoneChanged is called. See [zone.Observer].
func (k *Responder) ZoneChanging() { atomic.AddUint32(&k.control.Changing, 1) }

// ZoneChanged ends the answers of the zones that depend on more than one object.
func (k *Responder) ZoneChanged() {
	k.bump(zoneSlot)
	atomic.AddUint32(&k.control.Changing, ^uint32(0))
}

// addressOf returns an address in the form that the BPF programs use.
func addressOf(addr netip.Addr) (a hitsAddress) {
	bytes := addr.As16()
	for i := range a.Word {
		a.Word[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return a
}

// addr is the reverse of addressOf.
func (a *hitsAddress) addr() netip.Addr {
	var bytes [16]byte
	for i, word := range a.Word {
		binary.NativeEndian.PutUint32(bytes[4*i:], word)
	}
	return netip.AddrFrom16(bytes).Unmap()
}

// networkOrder returns the number whose bytes in memory are v in network byte order.
func networkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// SetDestinations sets the addresses and ports that clients query.
func (k *Responder) SetDestinations(list []netip.AddrPort) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	want := map[hitsDestination]bool{}
	for _, at := range list {
		family := uint16(6)
		if at.Addr().Is4() {
			family = 4
		}
		want[hitsDestination{Addr: addressOf(at.Addr()), Port: networkOrder(at.Port()), Family: family}] = true
	}
	return replace(k.objects.Destinations, k.destinations, want)
}

// readSockets gives the BPF programs the cookies of the agent's open sockets.
func (k *Responder) readSockets() error {
	want := map[uint64]bool{}
	for _, raw := range k.cfg.Sockets() {
		_ = raw.Control(func(fd uintptr) {
			if cookie, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE); err == nil {
				want[cookie] = true
			}
		})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return replace(k.objects.Sockets, k.sockets, want)
}

// replace makes want the keys of m. has are the current keys of m; replace updates it.
func replace[K comparable](m *ebpf.Map, has, want map[K]bool) error {
	for key := range has {
		if !want[key] {
			if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			delete(has, key)
		}
	}
	for key := range want {
		if !has[key] {
			if err := m.Put(key, uint8(1)); err != nil {
				return err
			}
			has[key] = true
		}
	}
	return nil
}

// Intervals of upkeep and of renew.
const (
	sweepInterval = time.Second
	beatInterval  = 200 * time.Millisecond
)

// Run attaches the programs to the interfaces of pods, and keeps the answers, until ctx ends. Then it detaches the programs. Errors are
// only logged: the agent answers without the kernel, too.
func (k *Responder) Run(ctx context.Context) {
	defer k.links.detachAll()
	defer k.Set(false)
	k.guard(ctx, k.upkeep)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { k.links.watch(ctx) })
	sweep, beat := time.NewTicker(sweepInterval), time.NewTicker(beatInterval)
	defer sweep.Stop()
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			k.guard(ctx, k.table.sweep)
			return
		case o := <-k.offers:
			k.guard(ctx, func() { k.table.fill(o.query[:o.len]) })
		case <-beat.C:
			k.renew()
		case <-sweep.C:
			k.guard(ctx, k.upkeep)
		}
	}
}

// guard calls do and recovers a panic: the agent can answer without the kernel, but not after a crash.
func (k *Responder) guard(ctx context.Context, do func()) {
	_ = panics.Guard{Where: "answers in the kernel", Log: k.log, Count: &k.panics}.Do(ctx, func() error { // it is logged
		do()
		return nil
	})
}

// upkeep counts the hits, removes unused answers, and follows the agent's sockets.
func (k *Responder) upkeep() {
	k.table.sweep()
	k.links.count()
	k.sweepNames()
	if err := k.readSockets(); err != nil {
		k.log.Warn("reading sockets failed", "err", err)
	}
}
