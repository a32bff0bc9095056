// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Kind is the kind of link that holds the addresses, as in `ip -d link`.
type Kind string

// The kinds. Auto uses the first of the others, in this order, that the kernel supports.
const (
	Auto     Kind = "auto"
	Dummy    Kind = "dummy"
	Bridge   Kind = "bridge" // without ports
	Loopback Kind = "lo"     // lo itself
)

// Config says which addresses a Link keeps, and on which link.
type Config struct {
	Name      string           // name of the link, at most 15 bytes; not used with Loopback
	Kind      Kind             //
	Addresses []netip.Addr     // unique, unicast, no zones
	Owner     string           // the name of this agent, 1 to 16 of a-z0-9
	Poll      time.Duration    // interval of checks besides those on events; 0: 10 s
	NoBridge  func() bool      // asked by Setup: Auto uses no bridge; nil: it may
	Log       *slog.Logger     // nil: no logs
	Now       func() time.Time // nil: time.Now
}

// A Link keeps the agent's addresses. Its methods may be called from any goroutine.
// They use the network namespace of the calling thread.
type Link struct {
	config Config
	mark   uint32
	open   func() (kernel, error)
	sem    chan struct{} // capacity 1: holds a value while reconcile or Remove works on the kernel

	removed bool // Remove was called; guarded by sem

	mu    sync.Mutex // guards stats
	stats Stats
}

// Stats is the state of a Link, as /status shows it. No list is nil, and all have the configured order.
type Stats struct {
	Name       string       `json:"name"`
	Kind       Kind         `json:"kind"`                // empty: no link yet
	Reason     string       `json:"why,omitempty"`       // why a preferred kind is not used; empty: the first one works
	Held       []netip.Addr `json:"held"`                // addresses that answer
	Missing    []string     `json:"missing"`             // the other addresses, each with ": " and the cause; none before the first check
	Duplicates []string     `json:"elsewhere"`           // addresses that another link has too, each with ": " and that link's name
	Repairs    uint64       `json:"repairs"`             // runs of the check that changed anything
	Contested  bool         `json:"contested,omitempty"` // another program undoes the repairs, so their rate is limited
	StoodDown  bool         `json:"stoodDown,omitempty"` // a newer agent owns the link, or an address on lo
	LastError  string       `json:"lastError,omitempty"` // error of the last check; empty: none
}

// New returns a Link. It changes nothing on the node.
func New(config Config) (*Link, error) {
	for _, a := range config.Addresses {
		if !a.IsGlobalUnicast() && (!a.Is4() || !a.IsLinkLocalUnicast()) {
			return nil, fmt.Errorf("address %s: not a unicast address that a link can hold", a)
		}
	}
	if config.Poll == 0 {
		config.Poll = 10 * time.Second
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Now == nil {
		config.Now = time.Now //nolint:forbidigo // the one default; tests and the agent set their own
	}
	config.Addresses = slices.Clone(config.Addresses)
	return &Link{config: config, mark: markOf(config.Owner), open: openKernel, sem: make(chan struct{}, 1)}, nil
}

// Setup creates or adopts the link and adds the addresses. It takes over what another
// agent owns there. If it cannot add all addresses, it returns an error that names the
// missing ones, and holds all others. The error wraps the causes.
func (l *Link) Setup(ctx context.Context) error {
	k, err := l.open()
	if err != nil {
		return err
	}
	defer k.close()
	for try := 1; ; try++ {
		changes, err := l.reconcile(ctx, k, true)
		if errors.Is(err, errLinkGone) && try < 5 { // another program removed it between two steps
			continue
		}
		stats := l.Stats()
		if len(stats.Held) == 0 {
			return err
		}
		l.config.Log.InfoContext(ctx, "link set up",
			"link", l.linkName(), "kind", stats.Kind, "reason", stats.Reason, "held", stats.Held, "changes", changes)
		l.findDuplicates(ctx, k)
		return err
	}
}

// Remove deletes what this agent owns and leaves the rest of the node as it was. If the
// link or an address belongs to another agent by now, Remove leaves it and returns
// ErrOwned. After Remove, Run repairs nothing.
func (l *Link) Remove(ctx context.Context) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	defer l.release()
	l.removed = true
	k, err := l.open()
	if err != nil {
		return err
	}
	defer k.close()
	_, err = removeLink(k, l.config.Name, l.config.Owner)
	if err == nil {
		_, err = removeMarked(k, func(a address) bool { return a.mark == l.mark && slices.Contains(l.config.Addresses, a.prefix.Addr()) })
	}
	if err == nil {
		err = l.checkLoopback(k)
	}
	if err == nil {
		l.update(func(s *Stats) { s.Kind, s.Held = "", nil })
	}
	return err
}

// checkLoopback returns ErrOwned if an address on lo belongs to another agent.
func (l *Link) checkLoopback(k kernel) error {
	list, err := k.addresses(loIndex)
	if err != nil {
		return err
	}
	for _, a := range list {
		if isMark(a.mark) && slices.Contains(l.config.Addresses, a.prefix.Addr()) {
			return fmt.Errorf("leaving %s on lo: %w", a.prefix.Addr(), ErrOwned)
		}
	}
	return nil
}

// Stats returns a copy of the state.
func (l *Link) Stats() Stats {
	name := l.linkName()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Name, s.Held = name, append([]netip.Addr{}, s.Held...)
	s.Missing, s.Duplicates = append([]string{}, s.Missing...), append([]string{}, s.Duplicates...)
	return s
}

func (l *Link) update(change func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.stats)
}

func (l *Link) acquire(ctx context.Context) error {
	select {
	case l.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a running check of link %s: %w", l.config.Name, ctx.Err())
	}
}

func (l *Link) release() { <-l.sem }
