// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/intercepttest"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/netif"
)

// A changingHost is a host on which Cilium comes and goes.
type changingHost struct {
	LocalHost

	cilium bool
	err    error
	link   netif.Config // of the last NewLink

	local    map[netip.Addr]bool
	localErr error

	policies    []string
	policiesErr error
	notracks    []dataplane.Notrack
	notracksErr error
	readings    int // of notracks
	reading     func()
}

func (h *changingHost) Policies() ([]string, error) { return h.policies, h.policiesErr }

func (h *changingHost) Notracks(dataplane.Flows) ([]dataplane.Notrack, error) {
	h.readings++
	if h.reading != nil {
		h.reading()
	}
	return h.notracks, h.notracksErr
}

func (h *changingHost) CiliumLocal([]netip.Addr) (map[netip.Addr]bool, error) {
	return h.local, h.localErr
}

func (h *changingHost) OnCilium() (bool, error) { return h.cilium, h.err }

// NewLink keeps the configuration of the link only.
func (h *changingHost) NewLink(c netif.Config) (Link, error) {
	h.link = c
	return nil, nil //nolint:nilnil // no test uses it
}

func TestNoBridgeOnCilium(t *testing.T) {
	t.Parallel()
	host := &changingHost{}
	cfg := Config{Host: host}
	cfg.Config.Interface.Manage = true
	_, err := New(cfg)
	assert.NoError(t, err)
	for _, step := range []struct {
		name   string
		cilium bool
		err    error
		want   bool
	}{
		{"another data plane", false, nil, false},
		{"Cilium", true, nil, true},
		{"not readable", true, errors.New("interrupted"), false},
	} {
		host.cilium, host.err = step.cilium, step.err
		assert.Same(t, step.name, step.want, host.link.NoBridge())
	}
}

func TestAdapt(t *testing.T) {
	t.Parallel()
	host := &changingHost{}
	w := &ciliumWatcher{host: host, log: slog.New(slog.DiscardHandler), now: time.Now}
	for _, step := range []struct {
		name   string
		cilium bool
		err    error
		want   bool
	}{
		{"Cilium was installed after the start", true, nil, true},
		{"not readable: what was known holds", false, errors.New("interrupted"), true},
		{"uninstalled", false, nil, false},
		{"not readable again", true, errors.New("interrupted"), false},
	} {
		host.cilium, host.err = step.cilium, step.err
		r := rules.Rules{Track: !step.want}
		w.adapt(t.Context(), &r)
		assert.Same(t, step.name, rules.Rules{Track: step.want, MarkHost: step.want}, r)
	}
}

// TestCiliumAfterStart: the status names the data plane that came later, and in mode transparent a problem follows from the note.
func TestCiliumAfterStart(t *testing.T) {
	t.Parallel()
	host := &changingHost{}
	cfg := Config{Host: host, Log: slog.New(slog.DiscardHandler), Target: func() Target { return Target{} }}
	n, err := New(cfg)
	assert.NoError(t, err)
	n.backend, n.dataPlane = intercepttest.NewFake(time.Now).Open(), dataplane.Found{Proxy: dataplane.IPTables}
	for _, on := range []bool{false, true, false} {
		host.cilium = on
		n.cilium.adapt(t.Context(), &rules.Rules{})
		s := n.interceptStatus()
		if (s.DataPlane == "cilium") != on || (s.Note != "") != on {
			t.Errorf("with Cilium: %t: data plane %s, note %q", on, s.DataPlane, s.Note)
		}
	}
}

// TestNotLocal lets Cilium notice the address late, never, and not say.
func TestNotLocal(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	host := &changingHost{}
	now := time.Unix(1_800_000_000, 0)
	w := &ciliumWatcher{host: host, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, addresses: []netip.Addr{four, six}}
	for _, step := range []struct {
		name     string
		cilium   bool
		local    map[netip.Addr]bool
		localErr error
		want     []netip.Addr
	}{
		{"another data plane", false, map[netip.Addr]bool{}, nil, nil},
		{"Cilium has not noticed it yet", true, map[netip.Addr]bool{}, nil, nil},
		{"nor a minute later", true, map[netip.Addr]bool{}, nil, nil},
		{"nor ever", true, map[netip.Addr]bool{}, nil, []netip.Addr{four}},
		{"its map is not visible", true, nil, fs.ErrNotExist, nil},
		{"it has noticed", true, map[netip.Addr]bool{four: true}, nil, nil},
		{"and forgotten", true, map[netip.Addr]bool{four: false}, nil, nil},
		{"for long", true, map[netip.Addr]bool{four: false}, nil, nil},
		{"too long", true, map[netip.Addr]bool{four: false}, nil, []netip.Addr{four}},
		{"uninstalled", false, map[netip.Addr]bool{}, nil, nil},
	} {
		now = now.Add(time.Minute)
		host.cilium, host.local, host.localErr = step.cilium, step.local, step.localErr
		w.adapt(t.Context(), &rules.Rules{})
		assert.Same(t, step.name, step.want, w.notLocal(), cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty())
	}
}
