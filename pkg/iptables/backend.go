// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Variant is one of the two implementations of iptables.
type Variant string

// The variants.
const (
	Nft    Variant = "nft"    // iptables-nft: the rules are in nftables
	Legacy Variant = "legacy" // iptables-legacy: the rules are in the kernel's old tables
)

// A Config configures a [Backend].
type Config struct {
	Variant  Variant          // empty: the one that the node uses
	LockWait time.Duration    // for the xtables lock; 0: 5 s; rounded up to seconds
	Log      *slog.Logger     // nil: no logs
	Now      func() time.Time // nil: the rules are never cached
}

// A Backend writes rules to the iptables of one network namespace. It implements
// intercept.Backend.
type Backend struct {
	own, other   *variantTables // other is nil if only one variant is installed
	reason       string
	netns        *netns
	sets         *sets
	now          func() time.Time
	log          *slog.Logger
	writeLock    semaphore                   // held by Apply and Remove
	applied      atomic.Pointer[rules.Rules] // of the last Apply, even if it failed; nil: none
	prepared     atomic.Pointer[rules.Rules] // of Prepare, before the first Apply; nil: none
	otherCleared bool                        // other has no rules of an agent; guarded by writing
	warnedIPv6   atomic.Bool                 // the missing IPv6 is logged
	closeOnce    sync.Once                   // closed descriptor numbers may be reused
}

// New locates the programs and opens sockets in the network namespace of the calling
// thread. It changes nothing. The caller has to close the Backend.
func New(cfg Config) (*Backend, error) {
	b := &Backend{now: cfg.Now, log: cfg.Log, writeLock: newSemaphore()}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if err := b.open(cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backend) open(cfg Config) (err error) {
	if b.netns, err = currentNetns(); err != nil {
		return err
	}
	if err := rawSocket(); err != nil {
		return err
	}
	if b.sets, err = openSets(); err != nil {
		return err
	}
	return b.openVariants(cfg.Variant, cmp.Or(cfg.LockWait, 5*time.Second))
}

// rawSocket tests whether a raw socket can be opened: iptables needs one to find a set,
// and iptables-legacy for everything.
func rawSocket() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("opening a raw socket, as iptables will: %w: it needs the capability NET_RAW", err)
	}
	return fmt.Errorf("opening a raw socket, as iptables will: %w", err)
}

// String returns the name of the backend: "iptables-nft" or "iptables-legacy".
func (b *Backend) String() string { return "iptables-" + string(b.own.variant) }

// Reason returns why the backend uses its variant.
func (b *Backend) Reason() string { return b.reason }

// Apply makes the kernel hold r and no other rules of an agent. It reports whether
// anything had to change. It writes each family even if the other fails. The error wraps
// [ErrLocked] if another program held the lock for too long.
func (b *Backend) Apply(ctx context.Context, r rules.Rules) (changed bool, err error) {
	if err := r.Check(); err != nil {
		return false, fmt.Errorf("checking rules: %w", err)
	}
	if err := b.writeLock.enter(ctx); err != nil {
		return false, err
	}
	defer b.writeLock.leave()
	changed, err = b.writeOwner(&r)
	if err != nil {
		return changed, err
	}
	var errs []error
	for _, v6 := range []bool{false, true} {
		wrote, err := b.applyFamily(ctx, &r, v6)
		changed = changed || wrote
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return changed, err // keep the rules of the other variant, which may be the only ones
	}
	wrote, err := b.clearOther(ctx)
	return changed || wrote, err
}

// writeOwner stores r's owner as the owner of the rules.
func (b *Backend) writeOwner(r *rules.Rules) (changed bool, err error) {
	b.applied.Store(r)
	notes, err := b.sets.readNotes()
	if err != nil || notes[noteOwner] == r.Owner {
		return false, err
	}
	return true, b.sets.writeNote(noteOwner, r.Owner)
}

func (b *Backend) applyFamily(ctx context.Context, r *rules.Rules, v6 bool) (bool, error) {
	part, p := r.Family(v6), b.own.program(v6)
	wanted := len(part.Addresses) > 0
	switch {
	case v6 && !hasIPv6(b.netns):
		if wanted && !b.warnedIPv6.Swap(true) {
			b.log.WarnContext(ctx, "IPv6 rules skipped, the kernel has no IPv6", "addresses", part.Addresses)
		}
		return false, nil
	case p == nil && wanted:
		return false, errors.New("writing IPv6 rules: ip6tables is not installed")
	case p == nil:
		return false, nil
	case wanted:
		if err := b.sets.create(v6); err != nil {
			return false, err
		}
	}
	chains := plan(r, v6, p.randomFully)
	return b.own.write(ctx, v6, chains, func() error { return b.recordBases(v6, chains) }, b.now)
}

// recordBases stores which tables and built-in chains Apply is about to create, so that
// Remove, by any agent, deletes them.
func (b *Backend) recordBases(v6 bool, chains []chain) error {
	made, err := b.own.bases(v6, chains)
	if err != nil || len(made) == 0 {
		return err
	}
	n := noteBase4
	if v6 {
		n = noteBase6
	}
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	for base := range strings.FieldsSeq(notes[n]) {
		if !slices.Contains(made, base) {
			made = append(made, base)
		}
	}
	return b.sets.writeNote(n, strings.Join(made, " "))
}

func noop() error { return nil }

// clearOther removes the rules of agents from the other variant.
func (b *Backend) clearOther(ctx context.Context) (changed bool, err error) {
	if b.other == nil || b.otherCleared {
		return false, nil
	}
	for _, v6 := range []bool{false, true} {
		if b.other.program(v6) == nil {
			continue
		}
		wrote, err := b.other.write(ctx, v6, plan(&rules.Rules{}, v6, false), noop, b.now)
		changed = changed || wrote
		if errors.Is(err, ErrLocked) || ctx.Err() != nil {
			return changed, err // the next Apply tries again
		}
		if err != nil { // our own rules do not depend on this
			b.log.WarnContext(ctx, "rules of the other variant not read", "variant", b.other.variant, "ipv6", v6, "err", err)
		}
	}
	b.otherCleared = true
	return changed, nil
}

// Close closes the sockets. Rules and leases stay.
func (b *Backend) Close() (err error) {
	b.closeOnce.Do(func() { err = b.close() })
	return err
}

func (b *Backend) close() error {
	var errs []error
	for _, s := range []*variantTables{b.own, b.other} {
		if s != nil {
			errs = append(errs, s.kernel.close())
		}
	}
	if b.sets != nil {
		b.sets.handle.Close()
	}
	if b.netns != nil {
		errs = append(errs, b.netns.close())
	}
	return errors.Join(errs...)
}

// State reads the rules and leases of both variants. It waits for no lock.
func (b *Backend) State(ctx context.Context) (rules.State, error) {
	state := rules.State{Leases: map[netip.Addr]time.Duration{}}
	notes, err := b.sets.readNotes()
	if err != nil {
		return state, err
	}
	state.Owner, state.Present = notes[noteOwner], len(notes) > 0
	for _, v6 := range []bool{false, true} {
		found, err := b.sets.leases(v6, state.Leases)
		if err != nil {
			return state, err
		}
		state.Present = state.Present || found
	}
	for _, s := range []*variantTables{b.own, b.other} {
		if s == nil || state.Count > 0 {
			continue
		}
		err := b.addRules(ctx, s, &state)
		switch {
		case err == nil:
		case s == b.own || ctx.Err() != nil:
			return state, err
		default:
			b.log.DebugContext(ctx, "rules of the other variant not read", "variant", s.variant, "err", err)
		}
	}
	state.Present = state.Present || state.Count > 0
	state.LeasesInUse = state.Count > 0 // all agents share the sets
	return state, nil
}

// addRules adds the rules of one variant. An error with IPv6 is only logged, so that the
// IPv4 rules are still reported; Apply returns it if it matters.
func (b *Backend) addRules(ctx context.Context, s *variantTables, state *rules.State) error {
	for _, v6 := range []bool{false, true} {
		have, err := s.cachedRead(ctx, v6, b.now)
		switch {
		case err == nil:
			state.Count += have.count(v6)
			state.Fallback = append(state.Fallback, have.fallback()...)
		case v6 && ctx.Err() == nil:
			b.log.DebugContext(ctx, "IPv6 rules not read", "err", err)
		default:
			return err
		}
	}
	return nil
}

const (
	watchInterval = 500 * time.Millisecond // takes a few system calls and runs no program
	fullReadEvery = 60                     // intervals until a full read
)

// Watch calls changed at the start, within half a second after rules may have been added to
// or removed from the agent's chains or the built-in chains that jump to them, and every
// 30 s for other changes. It returns nil when ctx ends.
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	changed()
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	last := ""
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := b.fingerprint(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching iptables-%s: %w", b.own.variant, err)
		}
		// Our own Apply is no change.
		news := now != last && now != b.lastFingerprint()
		if last = now; news || n%fullReadEvery == 0 {
			changed()
		}
	}
}

// lastFingerprint returns the fingerprint of the last readings, with our owner.
func (b *Backend) lastFingerprint() string {
	var marks [2]string
	for i := range b.own.lastRead {
		if last := b.own.lastRead[i].Load(); last != nil {
			marks[i] = last.fingerprint
		}
	}
	owner := ""
	if r := b.applied.Load(); r != nil {
		owner = r.Owner
	}
	return marks[0] + marks[1] + "owner " + owner
}

// fingerprint returns the kernel's fingerprint, with the owner of the rules.
func (b *Backend) fingerprint(ctx context.Context) (string, error) {
	if err := b.own.readLock.enter(ctx); err != nil {
		return "", err
	}
	defer b.own.readLock.leave()
	marks, err := b.own.kernel.fingerprint()
	if err != nil {
		return "", err
	}
	notes, err := b.sets.readNotes()
	return marks[0] + marks[1] + "owner " + notes[noteOwner], err
}
