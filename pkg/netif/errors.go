// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// What callers may want to tell apart.
var (
	// ErrOwned says that another agent, a newer one, has the link or the addresses.
	ErrOwned = errors.New("it belongs to another agent")

	// ErrForeign says that there is a link of that name which is nobody's to take.
	ErrForeign = errors.New("it is not the agent's to take")

	// ErrNotPermitted says that a right is missing.
	ErrNotPermitted = errors.New("operation not permitted: the agent needs the capability NET_ADMIN in the node's network namespace")

	// ErrUnsupported says that the kernel lacks the kind of link, or the family of addresses.
	ErrUnsupported = errors.New("this kernel does not have it")

	// ErrDisabled says that IPv6 is switched off, for the link or for the node.
	ErrDisabled = errors.New("IPv6 is disabled there (sysctl net.ipv6.conf.*.disable_ipv6)")
)

// What the kernel says and callers never see.
var (
	errNone      = errors.New("there is no such link")
	errVanished  = errors.New("the link went away meanwhile")
	errExists    = errors.New("it is there already")
	errTentative = errors.New("the kernel has not made up its mind yet whether another node has it (tentative)")
	errDown      = errors.New("the link is down")
)

// A MissingError says which addresses the node does not hold. Those that it does not
// name are held.
type MissingError struct {
	Missing []Missing // at least one, in the configured order
	Held    int       // how many addresses are held
}

// Missing is an address that the node does not hold.
type Missing struct {
	Addr netip.Addr
	Err  error // why
}

// Error names the addresses, their families and the reasons.
func (e *MissingError) Error() string {
	var b strings.Builder
	for i, m := range e.Missing {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s address %s is missing: %v", family(m.Addr), m.Addr, m.Err)
	}
	return b.String()
}

// Unwrap returns the reasons.
func (e *MissingError) Unwrap() []error {
	errs := make([]error, len(e.Missing))
	for i, m := range e.Missing {
		errs[i] = m.Err
	}
	return errs
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
