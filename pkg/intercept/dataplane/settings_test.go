// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"maps"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
)

// TestCiliumSettings: the same conditions as in Cilium's finishKubeProxyReplacementInit of 1.15, and pkg/ip's names of scopes.
func TestCiliumSettings(t *testing.T) {
	t.Parallel()
	bpf := map[string]string{"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"}
	for _, tt := range []struct {
		name    string
		version string
		options map[string]string // besides those of BPF host routing
		routing bool
		takes   bool
		known   bool
		loses   bool
	}{
		{name: "1.15", version: "1.15.19", routing: true, known: true, loses: true},
		{name: "strict", version: "1.14.2", options: map[string]string{"kube-proxy-replacement": "strict"}, routing: true, known: true, loses: true},
		{name: "no masquerading", version: "1.15.19", options: map[string]string{"enable-bpf-masquerade": "", "enable-ipv4-masquerade": "false", "enable-ipv6": "false"}, routing: true, known: true, loses: true},
		{name: "1.17", version: "1.17.0-rc.1", routing: true, known: true, loses: true},
		{name: "1.18", version: "1.18.3", routing: true},
		{name: "1.18 with the option", version: "1.18.3", options: map[string]string{"local-max-addr-scope": "254"}, routing: true, takes: true, known: true},
		{name: "1.19", version: "1.19.0", routing: true, takes: true, known: true},
		{name: "another version", version: "2.0.0", routing: true},
		{name: "unknown version", routing: true},
		{name: "the option", version: "1.15.19", options: map[string]string{"local-max-addr-scope": "254"}, routing: true, takes: true, known: true},
		{name: "the option by name", version: "1.15.19", options: map[string]string{"local-max-addr-scope": "host"}, routing: true, takes: true, known: true},
		{name: "a lower option", version: "1.15.19", options: map[string]string{"local-max-addr-scope": "link"}, routing: true, known: true, loses: true},
		{name: "legacy host routing", version: "1.15.19", options: map[string]string{"enable-host-legacy-routing": "true"}, known: true},
		{name: "beside kube-proxy", version: "1.15.19", options: map[string]string{"kube-proxy-replacement": "partial"}, known: true},
		{name: "masquerading by iptables", version: "1.15.19", options: map[string]string{"enable-bpf-masquerade": "false"}, known: true},
		{name: "masquerading of IPv6 by iptables", version: "1.15.19", options: map[string]string{"enable-bpf-masquerade": "", "enable-ipv4-masquerade": "false", "enable-ipv6": "true"}, known: true},
		{name: "IPsec", version: "1.15.19", options: map[string]string{"enable-ipsec": "true"}, known: true},
	} {
		c := dataplane.CiliumSettings{Version: tt.version, Options: maps.Clone(bpf)}
		maps.Copy(c.Options, tt.options)
		takes, known := c.TakesHostScope()
		assert.Same(t, tt.name, []bool{tt.routing, tt.takes && tt.known, tt.known, tt.loses}, []bool{c.BPFHostRouting(), takes && known, known, c.LosesHostScope()})
	}
}

func TestImageVersion(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"quay.io/cilium/cilium:v1.15.19@sha256:ab": "1.15.19",
		"quay.io/cilium/cilium:v1.20.0-rc.1":       "1.20.0-rc.1",
		"mirror:5000/cilium:1.17.3":                "1.17.3",
		"mirror.example:1.2/cilium":                "",
		"quay.io/cilium/cilium:latest":             "",
		"quay.io/cilium/cilium@sha256:ab":          "",
		"":                                         "",
	} {
		assert.Same(t, image, want, dataplane.ImageVersion(image))
	}
}
