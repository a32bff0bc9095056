// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Variant is one of the two programs called iptables.
type Variant string

// The variants.
const (
	Nft    Variant = "nft"    // iptables-nft: the rules are in nftables
	Legacy Variant = "legacy" // iptables-legacy: the rules are in the kernel's old tables
)

// A Config says which programs a [Backend] runs.
type Config struct {
	Variant  Variant          // empty: the one that the node uses
	LockWait time.Duration    // for the lock that users of iptables-legacy share; 0: 5 s; rounded up to seconds
	Log      *slog.Logger     // nil: nothing is logged
	Now      func() time.Time // nil: each look at the rules is a full one
}

// A Backend writes rules into the iptables of one network namespace. It is an
// intercept.Backend.
type Backend struct {
	own, other   *variantTables // other is nil where there is only one variant
	reason       string
	netns        *netns
	sets         *sets
	now          func() time.Time
	log          *slog.Logger
	writeLock    semaphore                   // of Apply and Remove
	applied      atomic.Pointer[rules.Rules] // by the last Apply, whether it went well or not; nil: none
	prepared     atomic.Pointer[rules.Rules] // by Prepare, before there are rules; nil: not
	otherCleared bool                        // other has no rules of ours; guarded by writing
	warnedIPv6   atomic.Bool                 // that there is no IPv6
	closeOnce    sync.Once                   // of descriptors whose numbers are somebody else's afterwards
}

// New finds the programs and opens sockets in the network namespace of the calling
// thread. It changes nothing. The caller closes the Backend.
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

// rawSocket tries what iptables does to find a set, and iptables-legacy for all.
func rawSocket() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("opening a raw socket, as iptables will: %w: it takes the capability NET_RAW", err)
	}
	return fmt.Errorf("opening a raw socket, as iptables will: %w", err)
}

// String is the name of the backend: "iptables-nft" or "iptables-legacy".
func (b *Backend) String() string { return "iptables-" + string(b.own.variant) }

// Reason says why the backend is of its variant.
func (b *Backend) Reason() string { return b.reason }

// Apply makes the kernel hold r and nothing else of an agent's, and says whether
// anything had to change. Of two families it writes one even if the other fails. The
// error is an [ErrLocked] when another program held the lock for too long.
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
		return changed, err // what another variant has may be all that there is
	}
	wrote, err := b.clearOther(ctx)
	return changed || wrote, err
}

// claim notes whose the rules are from now on.
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
			b.log.WarnContext(ctx, "no rules for IPv6: the kernel does not speak it", "addresses", part.Addresses)
		}
		return false, nil
	case p == nil && wanted:
		return false, errors.New("rules for IPv6: there is no ip6tables beside iptables")
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

// noteBases notes what is about to be made besides rules, so that Remove, by
// whichever agent, knows to take it away.
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

// clearOther removes what an agent left in the tables of the other variant.
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
		if err != nil { // and rules of our own need not wait for what was before
			b.log.WarnContext(ctx, "rules of the other variant not looked at", "variant", b.other.variant, "ipv6", v6, "error", err)
		}
	}
	b.otherCleared = true
	return changed, nil
}

// Close gives up the sockets. Rules and leases stay.
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
