// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/netif"
)

// A changingHost is a host on which Cilium comes and goes.
type changingHost struct {
	LocalHost

	cilium bool
	err    error
	link   netif.Config // of the last NewLink
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
	host := &changingHost{cilium: true}
	set := adapt(host, slog.New(slog.DiscardHandler), false)
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
		set(t.Context(), &r)
		assert.Same(t, step.name, rules.Rules{Track: step.want, MarkHost: step.want}, r)
	}
}
