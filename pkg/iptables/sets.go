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

	"github.com/nodecache/node-cache/pkg/retry"
)

// Left reports whether an agent wrote iptables rules in the network namespace of the
// calling thread, or was about to. It checks the ipsets, runs no program, and needs only
// the capability NET_ADMIN.
func Left() (bool, error) {
	s, err := openSets()
	if err != nil {
		return false, err
	}
	defer s.handle.Close()
	notes, err := s.readNotes()
	if err != nil || len(notes) > 0 {
		return len(notes) > 0, err
	}
	// An agent writes its sets before its notes and its rules. If it ended in between, only the sets are there.
	for _, v6 := range []bool{false, true} {
		if found, err := s.leases(v6, map[netip.Addr]time.Duration{}); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// ownerSet is the ipset of notes. A note is the comment of a dummy address 0.0.0.N, see noteOwner.
const ownerSet = "node-cache-owner"

// setName returns the name of the set "lease" or "drain" of a family.
func setName(what string, v6 bool) string {
	if v6 {
		return "node-cache-" + what + "6"
	}
	return "node-cache-" + what + "4"
}

// The last bytes of the addresses in ownerSet.
const (
	noteOwner = 1 // owner of the rules
	noteBase4 = 4 // tables and built-in chains of IPv4 that an agent created
	noteBase6 = 6 // the same for IPv6
)

// baseNote returns the note of the tables and built-in chains of a family.
func baseNote(v6 bool) byte {
	if v6 {
		return noteBase6
	}
	return noteBase4
}

// sets are the ipsets of a network namespace.
type sets struct{ handle *netlink.Handle }

// replyTimeout bounds the wait for a reply of the kernel. The kernel replies at once, or never
// if the socket buffer was full.
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
	short := uint32(1) // default timeout in seconds, for entries that are added by hand without one
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
func (s *sets) writeNote(note byte, text string) error {
	err := s.handle.IpsetCreate(ownerSet, "hash:ip", netlink.IpsetCreateOptions{Replace: true, Comments: true, Family: unix.AF_INET})
	if err != nil {
		return s.createProblem(ownerSet, err)
	}
	if err := s.handle.IpsetAdd(ownerSet, &netlink.IPSetEntry{IP: net.IPv4(0, 0, 0, note).To4(), Comment: text, Replace: true}); err != nil {
		return fmt.Errorf("writing to ipset %s: %w", ownerSet, err)
	}
	return nil
}

// readNotes returns all notes. Without the set there are none.
func (s *sets) readNotes() (map[byte]string, error) {
	list, err := s.handle.IpsetList(ownerSet)
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ipset %s: %w", ownerSet, err)
	}
	notes := make(map[byte]string, len(list.Entries))
	for _, e := range list.Entries {
		if ip := e.IP.To4(); ip != nil {
			notes[ip[3]] = e.Comment
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

// leases adds the remaining time of each lease of a family to left. found means that the set exists.
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
			if err = retry.Sleep(ctx, 10*time.Millisecond); err == nil {
				err = s.handle.IpsetDestroy(name)
			}
		}
		if err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("removing ipset %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
