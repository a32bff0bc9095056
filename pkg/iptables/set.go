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
)

// ownerSet holds no addresses but notes, as comments of addresses that are none.
const ownerSet = "node-cache-owner"

// setName is the name of a set of one family: "lease" or "drain".
func setName(what string, v6 bool) string {
	if v6 {
		return "node-cache-" + what + "6"
	}
	return "node-cache-" + what + "4"
}

// note is the element of ownerSet that carries one of the notes.
type note byte

const (
	noteOwner note = 1 // who put the rules there
	noteBase4 note = 4 // tables and built-in chains of IPv4 that were not there before
	noteBase6 note = 6 // the same of IPv6
)

func (n note) ip() net.IP { return net.IPv4(0, 0, 0, byte(n)).To4() }

// sets are the ipsets of a network namespace.
type sets struct{ handle *netlink.Handle }

// patience bounds the wait for an answer of the kernel, which is there at once or, when
// the socket had no room for it, never.
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
		err = fmt.Errorf("asking for ipsets: %w: it takes the capability NET_ADMIN", err)
	default:
		err = fmt.Errorf("asking for ipsets: %w: the kernel may lack the modules ip_set, ip_set_hash_ip and xt_set", err)
	}
	h.Close()
	return nil, err
}

// is says whether err is one of the kernel's ipset errors.
func isIPSetError(err error, code int) bool {
	var e nl.IPSetError
	return errors.As(err, &e) && e == nl.IPSetError(code) //nolint:gosec // a small number
}

func isNotExist(err error) bool { return errors.Is(err, syscall.ENOENT) }

// create makes the sets of a family, where they are not there yet.
func (s *sets) create(v6 bool) error {
	family := uint8(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	short := uint32(1) // of what somebody adds by hand without saying for how long
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
		return fmt.Errorf("making ipset %s: %w: the kernel lacks the module ip_set_hash_ip", name, err)
	case errors.Is(err, syscall.EEXIST), isIPSetError(err, nl.IPSET_ERR_EXIST):
		return fmt.Errorf("making ipset %s: %w: there is another of that name, `ipset destroy %s` removes it", name, err, name)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("making ipset %s: %w: it takes the capability NET_ADMIN", name, err)
	}
	return fmt.Errorf("making ipset %s: %w", name, err)
}

// write notes text, and makes the set of the notes if need be.
func (s *sets) writeNote(n note, text string) error {
	err := s.handle.IpsetCreate(ownerSet, "hash:ip", netlink.IpsetCreateOptions{Replace: true, Comments: true, Family: unix.AF_INET})
	if err != nil {
		return s.createProblem(ownerSet, err)
	}
	if err := s.handle.IpsetAdd(ownerSet, &netlink.IPSetEntry{IP: n.ip(), Comment: text, Replace: true}); err != nil {
		return fmt.Errorf("noting in ipset %s: %w", ownerSet, err)
	}
	return nil
}

// notes are all notes. There are none without the set.
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

// put has a be in a set for the time d from now, in one step, whether it is there or not.
// The kernel counts whole seconds here: d is rounded up.
func (s *sets) addEntry(what string, a netip.Addr, d time.Duration) error {
	seconds := uint32((max(d, 1) + time.Second - 1) / time.Second) //nolint:gosec // leases are short
	entry := &netlink.IPSetEntry{IP: a.AsSlice(), Timeout: &seconds, Replace: true}
	if err := s.handle.IpsetAdd(setName(what, a.Is6()), entry); err != nil {
		return fmt.Errorf("putting %s into ipset %s: %w", a, setName(what, a.Is6()), err)
	}
	return nil
}

// drop takes a out of a set, which it need not be in.
func (s *sets) deleteEntry(what string, a netip.Addr) error {
	err := s.handle.IpsetDel(setName(what, a.Is6()), &netlink.IPSetEntry{IP: a.AsSlice(), Replace: true})
	if err != nil && !isNotExist(err) {
		return fmt.Errorf("taking %s out of ipset %s: %w", a, setName(what, a.Is6()), err)
	}
	return nil
}

// leases adds what is left of each lease of a family. found says that there is the set.
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

// destroy removes all sets of ours, and waits for rules that are gone but not forgotten.
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

// sleep waits for d, or for the end of ctx, whose error it returns.
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
