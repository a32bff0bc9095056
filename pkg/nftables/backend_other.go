// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// A Backend is nothing on this system, and cannot be made.
type Backend struct{}

// New fails: nftables is Linux's.
func New(Config) (*Backend, error) {
	return nil, fmt.Errorf("opening a netlink socket: %w", errors.ErrUnsupported)
}

// Trace fails: nftables is Linux's.
func Trace(context.Context, netip.Addr, func(context.Context) error) ([]Drop, error) {
	return nil, fmt.Errorf("opening a netlink socket: %w", errors.ErrUnsupported)
}

// String names the backend.
func (*Backend) String() string { return "nftables" }

// Apply fails.
func (*Backend) Apply(context.Context, rules.Rules) (changed bool, err error) {
	return false, errors.ErrUnsupported
}

// Prepare fails.
func (*Backend) Prepare(context.Context, rules.Rules) error { return errors.ErrUnsupported }

// Renew fails.
func (*Backend) Renew(context.Context, []netip.Addr, time.Duration) error {
	return errors.ErrUnsupported
}

// Release fails.
func (*Backend) Release(context.Context, []netip.Addr, time.Duration) error {
	return errors.ErrUnsupported
}

// Watch fails.
func (*Backend) Watch(context.Context, func()) error { return errors.ErrUnsupported }

// Remove fails.
func (*Backend) Remove(context.Context, string) error { return errors.ErrUnsupported }

// State fails.
func (*Backend) State(context.Context) (rules.State, error) {
	return rules.State{}, errors.ErrUnsupported
}

// Close does nothing.
func (*Backend) Close() error { return nil }
