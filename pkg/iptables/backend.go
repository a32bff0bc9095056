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

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
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
	Variant  Variant          // empty: the variant that the node uses
	LockWait time.Duration    // longest wait for the xtables lock, rounded up to seconds; 0: 5 s
	Log      *slog.Logger     // nil: no logs
	Now      func() time.Time // clock for the age of rules that were read before, see maxReadAge; nil: rules are always read again
}

// A Backend writes rules to the iptables of one network namespace. It implements
// intercept.Backend.
type Backend struct {
	own, other   *variantTables // other is nil if only one variant is installed
	reason       string         // why own is used; a clause
	namespace    netns.NsHandle
	sets         *sets
	log          *slog.Logger
	rules        atomic.Pointer[rules.Rules] // rules of the last Apply, even if it failed, or else of the last Prepare; nil: neither was called
	applied      atomic.Bool                 // Apply was called
	warnedIPv6   atomic.Bool                 // the warning about missing IPv6 is logged
	writeMu      sync.Mutex                  // serializes Apply and Remove; guards otherCleared, and variantTables.written and printed
	otherCleared bool                        // clearOther is done: it does not run again
}

// New locates the programs and opens sockets in the network namespace of the calling
// thread. It changes nothing. The caller has to close the Backend.
func New(cfg Config) (*Backend, error) {
	b := &Backend{namespace: netns.None(), log: cfg.Log}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if err := b.open(cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backend) open(cfg Config) (err error) {
	if b.namespace, err = netns.Get(); err != nil {
		return fmt.Errorf("reading the network namespace: %w", err)
	}
	if err := rawSocket(); err != nil {
		return err
	}
	if b.sets, err = openSets(); err != nil {
		return err
	}
	return b.openVariants(cfg.Variant, cmp.Or(cfg.LockWait, 5*time.Second), cfg.Now)
}

// openVariants opens the wanted variant, or the one that the node uses, and the other one
// for its cleanup.
func (b *Backend) openVariants(wanted Variant, wait time.Duration, now func() time.Time) error {
	if wanted != "" && wanted != Nft && wanted != Legacy {
		return fmt.Errorf("variant %q is neither %s nor %s", wanted, Nft, Legacy)
	}
	nft, errNft := openTables(Nft, wait, b.namespace, now)
	legacy, errLegacy := openTables(Legacy, wait, b.namespace, now)
	b.own, b.other = nft, legacy
	switch {
	case nft == nil && legacy == nil, wanted == Nft && nft == nil, wanted == Legacy && legacy == nil:
		return errors.Join(errNft, errLegacy)
	case nft == nil, legacy == nil:
		b.own, b.other = cmp.Or(nft, legacy), nil
		b.reason = fmt.Sprintf("iptables-%s is the only variant", b.own.variant)
		return nil
	case wanted != "":
		b.reason = "it is configured"
	default:
		backend, shown := dataplane.Variant()
		wanted, b.reason = Variant(strings.TrimPrefix(backend, "iptables-")), "this node uses "+shown
	}
	if wanted == Legacy {
		b.own, b.other = legacy, nft
	}
	return nil
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
	b.writeMu.Lock()
	defer b.writeMu.Unlock()
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
	b.rules.Store(r)
	b.applied.Store(true)
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
	case v6 && !hasIPv6(b.namespace):
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
	return b.write(ctx, b.own, v6, plan(r, v6, p.randomFully))
}

// write makes a variant hold chains and reports whether anything changed.
func (b *Backend) write(ctx context.Context, s *variantTables, v6 bool, chains []chain) (changed bool, err error) {
	have, err := s.read(ctx, v6)
	if err != nil {
		return false, err
	}
	changes := s.changes(v6, have, chains)
	if changes == "" {
		return false, nil
	}
	if err := b.recordBases(s, v6, chains); err != nil {
		return false, err
	}
	return true, s.restore(ctx, v6, changes, chains)
}

// recordBases stores which tables and built-in chains are about to be created, so that
// Remove, by any agent, deletes them.
func (b *Backend) recordBases(s *variantTables, v6 bool, chains []chain) error {
	missing, err := s.missingBases(v6, chains)
	if err != nil || len(missing) == 0 {
		return err
	}
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	all := slices.Sorted(slices.Values(append(strings.Fields(notes[baseNote(v6)]), missing...)))
	return b.sets.writeNote(baseNote(v6), strings.Join(slices.Compact(all), " "))
}

// clearOther removes the rules of agents from the other variant, once for this Backend.
func (b *Backend) clearOther(ctx context.Context) (changed bool, err error) {
	if b.other == nil || b.otherCleared {
		return false, nil
	}
	for _, v6 := range []bool{false, true} {
		if b.other.program(v6) == nil {
			continue
		}
		wrote, err := b.write(ctx, b.other, v6, plan(&rules.Rules{}, v6, false))
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

// Remove removes the rules, chains and sets of the agent called owner, or, if owner is
// empty, of any agent. If they belong to another agent, it leaves all and returns
// [rules.ErrOwned]. It also deletes tables and built-in chains of iptables-nft that an
// agent created and that no program uses now. An empty table of iptables-legacy stays: the
// kernel cannot delete it.
func (b *Backend) Remove(ctx context.Context, owner string) error {
	b.writeMu.Lock()
	defer b.writeMu.Unlock()
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	if now := notes[noteOwner]; owner != "" && now != "" && now != owner {
		return fmt.Errorf("removing rules of %s: %w: of %s", owner, rules.ErrOwned, now)
	}
	var errs []error
	for _, s := range []*variantTables{b.own, b.other} {
		if s != nil {
			errs = append(errs, b.removeFrom(ctx, s, notes))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // the sets stay: the rules need them, and they hold the owner
	}
	return b.sets.destroy(ctx)
}

func (b *Backend) removeFrom(ctx context.Context, s *variantTables, notes map[byte]string) error {
	for _, v6 := range []bool{false, true} {
		if s.program(v6) == nil {
			continue
		}
		if _, err := b.write(ctx, s, v6, plan(&rules.Rules{}, v6, false)); err != nil {
			return fmt.Errorf("removing rules from iptables-%s: %w", s.variant, err)
		}
		if err := s.deleteEmpty(v6, strings.Fields(notes[baseNote(v6)])); err != nil {
			return fmt.Errorf("removing empty tables of iptables-%s: %w", s.variant, err)
		}
	}
	return nil
}

// errNoRules means that neither Apply nor Prepare was called: the sets for leases may not exist.
var errNoRules = errors.New("renewing a lease before any rules were applied or prepared")

// Prepare creates the sets for r's leases. No rule of this agent matches them yet, but
// rules of another agent may, because all agents share the sets. It waits for no lock and
// does not change the owner of the rules.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	for _, v6 := range []bool{false, true} {
		if part := r.Family(v6); len(part.Addresses) == 0 || v6 && !hasIPv6(b.namespace) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.sets.create(v6); err != nil {
			return err
		}
	}
	if !b.applied.Load() {
		b.rules.Store(&r)
	}
	return nil
}

// Renew sets the leases on keys to end d from now, rounded up to seconds. It waits for no
// lock. It needs an earlier Prepare, or an Apply, which may have failed.
func (b *Backend) Renew(_ context.Context, keys []netip.Addr, d time.Duration) error {
	r := b.rules.Load()
	if r == nil {
		return errNoRules
	}
	var errs []error
	for _, key := range keys {
		// A redirect needs a drain entry for each lease, and before it: resetRules resets sessions without such an entry.
		if target := drainKey(r, key); target != key {
			errs = append(errs, b.sets.addEntry("drain", target, d))
		}
		errs = append(errs, b.sets.addEntry("lease", key, d))
	}
	return errors.Join(errs...)
}

// drainKey returns the drain entry for a lease: the destination of a session's packets in
// resetRules. DNAT has already replaced that of a redirect by the agent's address.
func drainKey(r *rules.Rules, key netip.Addr) netip.Addr {
	return r.Listener(key)
}

// Release ends the leases on keys at once. Packets of open TCP sessions reach the agent
// for the time drain, rounded up to seconds. If the rules belong to another agent, so do
// the leases, and Release leaves them. It waits for no lock.
func (b *Backend) Release(_ context.Context, keys []netip.Addr, drain time.Duration) error {
	r := b.rules.Load()
	if r == nil {
		return nil // this agent has no lease
	}
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	// Before the first Apply the leases are this agent's and the rules are its predecessor's.
	if now := notes[noteOwner]; b.applied.Load() && now != "" && now != r.Owner {
		return nil
	}
	var errs []error
	for _, key := range keys {
		// The drain entry comes first, so that no session is reset in between.
		if drain > 0 {
			err = b.sets.addEntry("drain", drainKey(r, key), drain)
		} else {
			err = b.sets.deleteEntry("drain", drainKey(r, key))
		}
		if !isNotExist(err) {
			errs = append(errs, err)
		}
		errs = append(errs, b.sets.deleteEntry("lease", key))
	}
	return errors.Join(errs...)
}

// Close closes the sockets. Rules and leases stay.
func (b *Backend) Close() error {
	var errs []error
	for _, s := range []*variantTables{b.own, b.other} {
		if s != nil && s.nft != nil {
			errs = append(errs, s.nft.conn.Close())
		}
	}
	if b.sets != nil {
		b.sets.handle.Close()
	}
	if b.namespace.IsOpen() {
		errs = append(errs, b.namespace.Close())
	}
	return errors.Join(errs...)
}

// State reads the leases, and the rules of this variant or, if it has none, of the other one. It waits for no lock.
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
// IPv4 rules are still reported. Apply returns the error if the rules have IPv6 addresses.
func (b *Backend) addRules(ctx context.Context, s *variantTables, state *rules.State) error {
	for _, v6 := range []bool{false, true} {
		lines, err := s.read(ctx, v6)
		switch {
		case err == nil:
			state.Count += countRules(lines)
			state.Fallback = append(state.Fallback, fallbackTargets(lines)...)
		case v6 && ctx.Err() == nil:
			b.log.DebugContext(ctx, "IPv6 rules not read", "err", err)
		default:
			return err
		}
	}
	return nil
}

const (
	watchInterval = 500 * time.Millisecond // interval of fingerprints; each takes a few system calls and runs no program
	fullReadEvery = 60                     // number of intervals after which Watch reports a change anyway
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
		now, read, err := b.fingerprint()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching iptables-%s: %w", b.own.variant, err)
		}
		// A fingerprint that this agent read with its own rules is no change.
		news := now != last && now != read
		if last = now; news || n%fullReadEvery == 0 {
			changed()
		}
	}
}

// fingerprint returns the kernel's fingerprint with the rules' owner, and the fingerprint at the last read with this agent as the owner.
func (b *Backend) fingerprint() (now, read string, err error) {
	b.own.readMu.Lock()
	defer b.own.readMu.Unlock()
	marks, err := b.own.fingerprint()
	if err != nil {
		return "", "", err
	}
	notes, err := b.sets.readNotes()
	owner := ""
	if r := b.rules.Load(); r != nil {
		owner = r.Owner
	}
	return fmt.Sprint(marks, notes[noteOwner]), fmt.Sprint([]string{b.own.last[0].fingerprint, b.own.last[1].fingerprint}, owner), err
}
