// SPDX-License-Identifier: Apache-2.0

package netif

import "errors"

// Errors that callers can match.
var (
	// ErrOwned means that another, newer agent owns the link or the addresses.
	ErrOwned = errors.New("it belongs to another agent")

	// ErrForeign means that the link of that name was not created for an agent.
	ErrForeign = errors.New("another program uses it")

	// ErrNotPermitted means that a capability is missing.
	ErrNotPermitted = errors.New("operation not permitted: the agent needs the capability NET_ADMIN in the node's network namespace")

	// ErrUnsupported means that the kernel does not support the kind of link or the address family.
	ErrUnsupported = errors.New("this kernel does not support it")

	// ErrDisabled means that IPv6 is disabled for the link or for the node.
	ErrDisabled = errors.New("IPv6 is disabled (sysctl net.ipv6.conf.*.disable_ipv6)")
)

// Errors of the kernel that callers do not see.
var (
	errNoLink    = errors.New("no such link")
	errLinkGone  = errors.New("another program removed the link meanwhile")
	errExists    = errors.New("it exists already")
	errTentative = errors.New("the kernel has not finished duplicate address detection (tentative)")
	errDown      = errors.New("the link is down")
)
