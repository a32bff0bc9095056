// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// errNoRules says that there is nothing yet that holds leases, or could look at one.
var errNoRules = errors.New("renewing a lease before any rules were applied or prepared")

// Prepare creates the sets for r's leases. No rule of this agent matches them yet, but
// rules of another agent may, because all agents share the sets. It waits for no lock and
// does not change the owner of the rules.
func (b *Backend) Prepare(ctx context.Context, r rules.Rules) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("checking rules: %w", err)
	}
	for _, v6 := range []bool{false, true} {
		if part := r.Family(v6); len(part.Addresses) == 0 || v6 && !hasIPv6(b.netns) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.sets.create(v6); err != nil {
			return err
		}
	}
	b.prepared.Store(&r)
	return nil
}

// currentRules returns the rules whose leases are in use; nil: none yet.
func (b *Backend) currentRules() *rules.Rules {
	if r := b.applied.Load(); r != nil {
		return r
	}
	return b.prepared.Load()
}

// Renew sets the leases on keys to end d from now, rounded up to seconds. It waits for no
// lock. It needs an earlier Prepare, or an Apply, which may have failed.
func (b *Backend) Renew(_ context.Context, keys []netip.Addr, d time.Duration) error {
	r := b.currentRules()
	if r == nil {
		return errNoRules
	}
	var errs []error
	for _, key := range keys {
		// The drain entry comes first, so that no session is reset that has just begun.
		if target := drainKey(r, key); target != key {
			errs = append(errs, b.sets.addEntry("drain", target, d))
		}
		errs = append(errs, b.sets.addEntry("lease", key, d))
	}
	return errors.Join(errs...)
}

// drainKey returns the destination of a session's packets at the rule that may reset them:
// in transparent mode that is the agent's address already.
func drainKey(r *rules.Rules, key netip.Addr) netip.Addr {
	if r.Mode == rules.Transparent {
		if target := r.Target(key); target.IsValid() {
			return target
		}
	}
	return key
}

// Release ends the leases on keys at once. Packets of open TCP sessions reach the agent
// for the time drain, rounded up to seconds. If the rules belong to another agent, so do
// the leases, and Release leaves them. It waits for no lock.
func (b *Backend) Release(_ context.Context, keys []netip.Addr, drain time.Duration) error {
	r := b.currentRules()
	if r == nil {
		return nil // this agent has no lease
	}
	notes, err := b.sets.readNotes()
	if err != nil {
		return err
	}
	// Before the first Apply the leases are this agent's and the rules are its predecessor's.
	if now := notes[noteOwner]; b.applied.Load() != nil && now != "" && now != r.Owner {
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

// ownerSet holds notes, as the comments of dummy addresses.
const ownerSet = "node-cache-owner"

// setName returns the name of the set "lease" or "drain" of a family.
func setName(what string, v6 bool) string {
	if v6 {
		return "node-cache-" + what + "6"
	}
	return "node-cache-" + what + "4"
}

// A note identifies an element of ownerSet by its last byte.
type note byte

const (
	noteOwner note = 1 // owner of the rules
	noteBase4 note = 4 // tables and built-in chains of IPv4 that an agent created
	noteBase6 note = 6 // the same of IPv6
)

func (n note) ip() net.IP { return net.IPv4(0, 0, 0, byte(n)).To4() }

// sets are the ipsets of a network namespace.
type sets struct{ handle *netlink.Handle }

// replyTimeout bounds the wait for a reply of the kernel. It is there at once, or never if
// the socket buffer was full.
const replyTimeout = time.Second

// openSets opens a socket in the namespace of the calling thread.
func openSets() (*sets, error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(replyTimeout); err != nil {
		h.Close()
		return nil, fmt.Errorf("setting up a netlink socket: %w", err)
	}
	_, _, err = h.IpsetProtocol()
	switch {
	case err == nil:
		return &sets{handle: h}, nil
	case errors.Is(err, syscall.EPERM):
		err = fmt.Errorf("querying ipsets: %w: it needs the capability NET_ADMIN", err)
	default:
		err = fmt.Errorf("querying ipsets: %w: the kernel may lack the modules ip_set, ip_set_hash_ip and xt_set", err)
	}
	h.Close()
	return nil, err
}

// isIPSetError reports whether err is this ipset error of the kernel.
func isIPSetError(err error, code int) bool {
	var e nl.IPSetError
	return errors.As(err, &e) && e == nl.IPSetError(code) //nolint:gosec // a small number
}

func isNotExist(err error) bool { return errors.Is(err, syscall.ENOENT) }

// create creates the sets of a family if they do not exist.
func (s *sets) create(v6 bool) error {
	family := uint8(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	short := uint32(1) // for entries that are added by hand without a timeout
	for _, what := range []string{"lease", "drain"} {
		options := netlink.IpsetCreateOptions{Replace: true, Family: family, Timeout: &short}
		if err := s.handle.IpsetCreate(setName(what, v6), "hash:ip", options); err != nil {
			return s.createProblem(setName(what, v6), err)
		}
	}
	return nil
}

func (s *sets) createProblem(name string, err error) error {
	switch {
	case isIPSetError(err, nl.IPSET_ERR_FIND_TYPE):
		return fmt.Errorf("creating ipset %s: %w: the kernel lacks the module ip_set_hash_ip", name, err)
	case errors.Is(err, syscall.EEXIST), isIPSetError(err, nl.IPSET_ERR_EXIST):
		return fmt.Errorf("creating ipset %s: %w: a different set has that name, run `ipset destroy %s`", name, err, name)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("creating ipset %s: %w: it needs the capability NET_ADMIN", name, err)
	}
	return fmt.Errorf("creating ipset %s: %w", name, err)
}

// writeNote stores text, and creates the set of the notes if necessary.
func (s *sets) writeNote(n note, text string) error {
	err := s.handle.IpsetCreate(ownerSet, "hash:ip", netlink.IpsetCreateOptions{Replace: true, Comments: true, Family: unix.AF_INET})
	if err != nil {
		return s.createProblem(ownerSet, err)
	}
	if err := s.handle.IpsetAdd(ownerSet, &netlink.IPSetEntry{IP: n.ip(), Comment: text, Replace: true}); err != nil {
		return fmt.Errorf("writing to ipset %s: %w", ownerSet, err)
	}
	return nil
}

// readNotes returns all notes. Without the set there are none.
func (s *sets) readNotes() (map[note]string, error) {
	list, err := s.handle.IpsetList(ownerSet)
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ipset %s: %w", ownerSet, err)
	}
	notes := make(map[note]string, len(list.Entries))
	for _, e := range list.Entries {
		if ip := e.IP.To4(); ip != nil {
			notes[note(ip[3])] = e.Comment
		}
	}
	return notes, nil
}

// addEntry adds a to a set for the time d, or changes the timeout of an existing entry, in
// one step. The kernel counts whole seconds: d is rounded up.
func (s *sets) addEntry(what string, a netip.Addr, d time.Duration) error {
	seconds := uint32((max(d, 1) + time.Second - 1) / time.Second) //nolint:gosec // leases are short
	entry := &netlink.IPSetEntry{IP: a.AsSlice(), Timeout: &seconds, Replace: true}
	if err := s.handle.IpsetAdd(setName(what, a.Is6()), entry); err != nil {
		return fmt.Errorf("adding %s to ipset %s: %w", a, setName(what, a.Is6()), err)
	}
	return nil
}

// deleteEntry removes a from a set. A missing entry is no error.
func (s *sets) deleteEntry(what string, a netip.Addr) error {
	err := s.handle.IpsetDel(setName(what, a.Is6()), &netlink.IPSetEntry{IP: a.AsSlice(), Replace: true})
	if err != nil && !isNotExist(err) {
		return fmt.Errorf("removing %s from ipset %s: %w", a, setName(what, a.Is6()), err)
	}
	return nil
}

// leases adds the remaining time of each lease of a family. found means that the set exists.
func (s *sets) leases(v6 bool, left map[netip.Addr]time.Duration) (found bool, err error) {
	name := setName("lease", v6)
	list, err := s.handle.IpsetList(name)
	if isNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading ipset %s: %w", name, err)
	}
	for _, e := range list.Entries {
		if a, ok := netip.AddrFromSlice(e.IP); ok && e.Timeout != nil {
			left[a.Unmap()] = time.Duration(*e.Timeout) * time.Second
		}
	}
	return true, nil
}

// destroy removes all sets of the agent. It waits until the kernel has freed deleted rules
// that use them.
func (s *sets) destroy(ctx context.Context) error {
	var errs []error
	for _, name := range []string{
		setName("lease", false), setName("drain", false), setName("lease", true), setName("drain", true), ownerSet,
	} {
		err := s.handle.IpsetDestroy(name)
		for tries := 0; isIPSetError(err, nl.IPSET_ERR_BUSY) && tries < 200; tries++ {
			if err = sleep(ctx, 10*time.Millisecond); err == nil {
				err = s.handle.IpsetDestroy(name)
			}
		}
		if err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("removing ipset %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// sleep waits for d. It returns the error of ctx if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
