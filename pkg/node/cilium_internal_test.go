// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept"
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

	scopes map[netip.Addr]bool

	policies    []string
	policiesErr error
	notracks    []dataplane.Notrack
	notracksErr error
	readings    int // of notracks
	reading     func()
}

func (h *changingHost) Scopes() (map[netip.Addr]bool, error) {
	if h.scopes == nil {
		return nil, errors.New("interrupted")
	}
	return h.scopes, nil
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

// TestLost: queries of pods are lost only where the settings say so, the address has scope host, and neither a query nor Cilium's map
// says otherwise.
func TestLost(t *testing.T) {
	t.Parallel()
	four, six, pod, own := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a"), netip.MustParseAddr("10.244.0.7"), netip.MustParseAddr("192.0.2.1")
	const why = "Cilium 1.15.19 with BPF host routing does not take 169.254.20.10 for an address of the node"
	settings := func(version, scope string) *dataplane.CiliumSettings {
		return &dataplane.CiliumSettings{Version: version, Options: map[string]string{
			"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true", "local-max-addr-scope": scope,
		}}
	}
	old := settings("1.15.19", "")
	scopes := map[netip.Addr]bool{four: true, six: false, own: false, netip.MustParseAddr("127.0.0.1"): true}
	host := &changingHost{}
	n := newWatchedNode(t, host, dataplane.BackendNFTables)
	w := &n.cilium
	var clients []netip.Addr
	w.addresses, w.clients = []netip.Addr{four, six}, func() []netip.Addr { return clients }
	for _, step := range []struct {
		name     string
		cilium   bool
		settings *dataplane.CiliumSettings
		scopes   map[netip.Addr]bool
		clients  []netip.Addr
		local    map[netip.Addr]bool // nil: not visible
		want     bool
	}{
		{name: "no Cilium", settings: old, scopes: scopes},
		{name: "unknown settings", cilium: true, scopes: scopes},
		{name: "lost", cilium: true, settings: old, scopes: scopes, want: true},
		{name: "queries of the node itself", cilium: true, settings: old, scopes: scopes, clients: []netip.Addr{four, own}, want: true},
		{name: "another version", cilium: true, settings: settings("1.19.0", ""), scopes: scopes},
		{name: "an unknown version", cilium: true, settings: settings("", ""), scopes: scopes},
		{name: "the option", cilium: true, settings: settings("1.15.19", "254"), scopes: scopes},
		{name: "lost again", cilium: true, settings: old, scopes: scopes, want: true},
		{name: "another scope", cilium: true, settings: old, scopes: map[netip.Addr]bool{four: false}},
		{name: "not on a link yet", cilium: true, settings: old, scopes: map[netip.Addr]bool{}},
		{name: "unreadable addresses", cilium: true, settings: old},
		{name: "its map says that it is lost", cilium: true, settings: old, scopes: scopes, local: map[netip.Addr]bool{}, want: true},
		{name: "its map says otherwise", cilium: true, settings: old, scopes: scopes, local: map[netip.Addr]bool{four: true}},
		{name: "a pod's query", cilium: true, settings: old, scopes: scopes, clients: []netip.Addr{own, pod}},
		{name: "none any more", cilium: true, settings: old, scopes: scopes, want: true},
		{name: "removed", settings: old, scopes: scopes},
	} {
		host.cilium, host.scopes, host.local, host.localErr = step.cilium, step.scopes, step.local, nil
		if step.local == nil {
			host.localErr = fs.ErrNotExist
		}
		clients = step.clients
		w.set(t.Context(), step.settings)
		w.adapt(t.Context(), &rules.Rules{})
		if got := w.loses(netip.Addr{}); (got != "") != step.want {
			t.Errorf("%s: %q", step.name, got)
			continue
		}
		want := intercept.FallbackBroken
		if !step.want {
			want = intercept.FallbackWorks
			if step.cilium {
				want = intercept.FallbackUnverified
			}
		} else if len(w.notLocal()) != 1 || w.loses(six) != "" {
			t.Errorf("%s: %v not local, IPv6: %q", step.name, w.notLocal(), w.loses(six))
		}
		assert.Same(t, step.name+": fallback", want, n.podsWay.of(rules.Lease{Key: four}).State)
	}
	host.cilium, host.scopes, host.localErr = true, scopes, fs.ErrNotExist
	w.set(t.Context(), nil)
	w.set(t.Context(), settings("1.15.19", "link"))
	w.adapt(t.Context(), &rules.Rules{})
	assert.Same(t, "why", why, w.loses(four))
	n.backend = intercepttest.NewFake(time.Now).Open()
	assert.Same(t, "status", why, n.interceptStatus().Lost)
	n.config.Listen = config.Listen{Addresses: w.addresses, Port: 53}
	_, err := n.newKeeper(t.Context(), Target{Standby: true, Fallback: fallbackRules().Fallback}) // in standby a lease is no condition
	assert.NoError(t, err)
	assert.Same(t, "not ready", "queries of pods are lost: "+why, text(n.NotReady()))
	w.set(t.Context(), nil)
	assert.Same(t, "ready", "", text(n.NotReady()))
}

// TestHostFirewall names the setting of Cilium that may keep pods from the fallback.
func TestHostFirewall(t *testing.T) {
	t.Parallel()
	n := newWatchedNode(t, &changingHost{cilium: true, localErr: fs.ErrNotExist}, dataplane.BackendNFTables)
	for _, on := range []string{"true", "false"} {
		n.cilium.set(t.Context(), &dataplane.CiliumSettings{Options: map[string]string{"enable-host-firewall": on}})
		n.cilium.adapt(t.Context(), &rules.Rules{})
		got := n.podsWay.of(leaseOf("169.254.20.10"))
		if strings.Contains(got.Why, "(enable-host-firewall)") != (on == "true") || got.State != intercept.FallbackUnverified {
			t.Errorf("with %s: %+v", on, got)
		}
	}
}

// TestSettingsAreRead: once there is Cilium, and again later. An error changes nothing.
func TestSettingsAreRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := &changingHost{localErr: fs.ErrNotExist}
		n := newWatchedNode(t, host, dataplane.BackendNFTables)
		w, asked := &n.cilium, 0
		answer, failed := &dataplane.CiliumSettings{Options: map[string]string{"enable-host-firewall": "true"}}, error(nil)
		w.read = func(context.Context) (*dataplane.CiliumSettings, error) {
			asked++
			return answer, failed
		}
		ctx, cancel := context.WithCancel(t.Context())
		go w.run(ctx)
		for _, step := range []struct {
			name  string
			do    func()
			after time.Duration
			asked int
			want  bool // the host firewall is on
		}{
			{"no Cilium", func() {}, time.Hour, 0, false},
			{"installed", func() { host.cilium = true }, settingsRetry, 1, true},
			{"before the next time", func() { answer = nil }, settingsInterval - settingsRetry, 1, true},
			{"unknown", func() {}, settingsSpread + settingsRetry, 2, false},
		} {
			step.do()
			w.adapt(ctx, &rules.Rules{})
			time.Sleep(step.after + time.Nanosecond)
			synctest.Wait()
			if asked != step.asked || w.hostFirewall() != step.want {
				t.Errorf("%s: read %d times, want %d, firewall %t", step.name, asked, step.asked, w.hostFirewall())
			}
		}
		answer = &dataplane.CiliumSettings{Options: map[string]string{"enable-host-firewall": "true"}}
		time.Sleep(settingsInterval + settingsSpread)
		failed, answer = errors.New("no answer"), nil
		before := asked
		time.Sleep(time.Hour)
		synctest.Wait()
		if tries := asked - before; tries < 100 || !w.hostFirewall() {
			t.Errorf("after an error: read %d times, firewall %t", tries, w.hostFirewall())
		}
		cancel()
		synctest.Wait()
	})
}
