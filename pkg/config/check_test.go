// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/listen"
)

// findings returns what is wrong with a text, a line for each problem and warning, without hints.
func findings(t *testing.T, text string, role config.Role, files func(*config.Config, *config.Findings)) string {
	t.Helper()
	checked, err := config.Check(config.Stdin, strings.NewReader(text), role, files)
	var list []string
	for _, w := range checked.Warnings {
		list = append(list, w.Place("")+": warning: "+w.String())
	}
	if bad, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range bad.Problems {
			list = append(list, p.Place("")+": "+p.String())
		}
	} else {
		assert.NoError(t, err)
	}
	return strings.Join(list, "\n")
}

const (
	ownOnly = "no usable upstream: node-cache itself listens there, and the list has no other server"
	ownOne  = "never asked: node-cache itself listens there"
)

// TestOwnAddresses has upstreams that are the process itself.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		role       config.Role
		want       string
	}{
		{name: "the only upstream", text: "forward:\n- {zone: ., to: ['127.0.0.1:1053']}", want: "line 2:17: forward[0].to: \"127.0.0.1:1053\": " + ownOnly},
		{name: "another port", text: "forward: [{zone: ., to: [127.0.0.1]}]"},
		{name: "another loopback address", text: "forward: [{zone: ., to: ['127.0.0.2:1053']}]"},
		{
			name: "each route has its own line", text: "listen: {addresses: [169.254.20.10, '::1'], port: 53}\nforward:\n- zone: .\n  to:\n" +
				"  - 169.254.20.10\n  - tcp://[::1]\n- zone: a\n  to: [tls://169.254.20.10:53]\n- {zone: b, to: [192.0.2.1]}",
			want: `line 5:3: forward[0].to: "169.254.20.10": ` + ownOnly + "\n" + `line 8:7: forward[1].to: "tls://169.254.20.10:53": ` + ownOnly,
		},
		{
			name: "one of several", text: "forward: [{zone: ., to: [192.0.2.1,\n'127.0.0.1:1053']}]",
			want: `line 2:1: warning: forward[0].to[1]: "127.0.0.1:1053": ` + ownOne,
		},
		{
			name: "beside a resolv.conf", text: "forward: [{zone: ., to: [/none/resolv.conf, '127.0.0.1:1053']}]",
			want: `line 1:45: warning: forward[0].to[1]: "127.0.0.1:1053": ` + ownOne,
		},
		{name: "no upstream", text: "forward: [{zone: ., to: [none]}]"},
		{
			name: "a host with own addresses", text: "listen: {port: 443}\nforward: [{zone: ., to: ['https://dns.example'], bootstrap: [127.0.0.1]}]",
			want: `line 2:25: forward[0].to: "https://127.0.0.1#dns.example": ` + ownOnly,
		},
		{
			name: "a host with one own address", text: "listen: {port: 443}\nforward: [{zone: ., to: ['https://dns.example'], bootstrap: [127.0.0.1, 192.0.2.1]}]",
			want: `line 2:26: warning: forward[0].to[0]: "https://127.0.0.1#dns.example": ` + ownOne,
		},
		{name: "every IPv4 address", text: "listen: {addresses: [0.0.0.0], port: 53}\nforward: [{zone: ., to: [127.0.0.9]}]", want: `line 2:25: forward[0].to: "127.0.0.9": ` + ownOnly},
		{name: "every IPv4 address, over IPv6", text: "listen: {addresses: [0.0.0.0], port: 53}\nforward: [{zone: ., to: ['::1']}]"},
		{name: "the default of a resolver", role: config.Resolver, text: "forward: [{zone: ., to: ['127.0.0.1:1053']}]", want: `line 1:25: forward[0].to: "127.0.0.1:1053": ` + ownOnly},
		{name: "a bad listen address", text: "listen: {addresses: [127.0.0.1, x]}\nforward: [{zone: ., to: ['127.0.0.1:1053']}]", want: `line 1:33: listen.addresses[1]: "x": not an IP address`},
		{name: "a bad upstream", text: "forward: [{zone: ., to: ['127.0.0.1:1053', x]}]", want: `line 1:44: forward[0].to[1]: "x": not an IP address, a URL or a path`},
		{
			name: "the central resolver", text: "cluster: {resolver: central, central: {addresses: ['127.0.0.1:1053']}}",
			want: `line 1:51: cluster.central.addresses: "127.0.0.1:1053": ` + ownOnly,
		},
		{
			name: "one of several central resolvers", text: "cluster: {resolver: central, central: {addresses: ['127.0.0.1:1053', 192.0.2.1]}}",
			want: `line 1:52: warning: cluster.central.addresses[0]: "127.0.0.1:1053": ` + ownOne,
		},
		{
			name: "a central resolver that is only the fallback", text: "cluster: {central: {addresses: ['127.0.0.1:1053']}}",
			want: `line 1:33: warning: cluster.central.addresses[0]: "127.0.0.1:1053": ` + ownOne,
		},
		{
			name: "the fallback", text: "intercept: {fallback: ['127.0.0.1:1053']}",
			want: `line 1:24: warning: intercept.fallback[0]: "127.0.0.1:1053": ` + ownOne,
		},
		{
			name: "the address of the Service, which the agent may ask", text: "listen: {addresses: [169.254.20.10], port: 53}\ninterface: {manage: true}\n" +
				"intercept: {manage: true, mode: transparent, services: [10.96.0.10]}\nforward: [{zone: ., to: [10.96.0.10]}]",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "findings", tt.want, findings(t, tt.text, tt.role, nil))
			_, err := config.Parse([]byte(tt.text), tt.role)
			if refused := tt.want != "" && !strings.Contains(tt.want, "warning"); refused != (err != nil) {
				t.Errorf("Parse: error %v, want one: %t", err, refused)
			}
		})
	}
}

// TestOwnAddressesOfThisMachine has an upstream at an address that this machine has, and others do not.
func TestOwnAddressesOfThisMachine(t *testing.T) {
	t.Parallel()
	own := machineAddress(t)
	text := "listen: {addresses: ['::'], port: 53}\nforward: [{zone: ., to: ['" + own.String() + "']}]"
	noFiles := func(*config.Config, *config.Findings) {}
	assert.Equal(t, "on the node", `line 2:25: forward[0].to: "`+own.String()+`": `+ownOnly, findings(t, text, config.Agent, noFiles))
	assert.Equal(t, "on another machine", "", findings(t, text, config.Agent, nil))
}

// TestCheckWarnings has valid values with another effect than was likely meant.
func TestCheckWarnings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"slow queries beyond the deadline", "log: {queries: slow=5s}", `line 1:16: warning: log.queries: "slow=5s": no query takes longer than limits.deadline, which is 4s`},
		{"slow queries at the deadline", "log: {queries: slow=4s}", ""},
		{"slow, and a short deadline", "limits: {deadline: 500ms}\nlog: {queries: slow}", `line 2:16: warning: log.queries: "slow": no query takes longer than limits.deadline, which is 500ms`},
		{"beside a problem", "limits: {deadline: 500}\nlog: {queries: slow=5s}", "line 1:20: limits.deadline: 500: not a duration"},
		{"too many", "forward:\n- {zone: ., to: [192.0.2.1]}\n" + ownRoutes(150), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := findings(t, tt.text, config.Agent, nil)
			if tt.name == "too many" {
				assert.Equal(t, "warnings", 100, strings.Count(got, "warning"))
				return
			}
			assert.Equal(t, "findings", tt.want, got)
		})
	}
}

// ownRoutes returns routes with an own address beside another one.
func ownRoutes(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("- {zone: z" + strings.Repeat("x", i%60) + string(rune('a'+i/60)) + ", to: [192.0.2.1, '127.0.0.1:1053']}\n")
	}
	return b.String()
}

// TestStdin reads standard input.
func TestStdin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"a mistake", "cache: {sise: 1Mi}", `standard input:1:9: cache.sise: unknown key`},
		{"no text", " \n", "standard input is empty"},
		{"too much", strings.Repeat("#", 1<<20+1), "standard input: larger than 1Mi"},
	} {
		_, err := config.LoadFrom(config.Stdin, strings.NewReader(tt.text), config.Agent)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.want)
		}
	}
	c, err := config.LoadFrom(config.Stdin, strings.NewReader("hosts: {files: [/h/hosts]}"), config.Agent)
	assert.NoError(t, err)
	assert.Same(t, "files", []string{"/h/hosts"}, c.Hosts.Files)
}

// machineAddress returns an address of this machine that is no loopback address.
func machineAddress(t *testing.T) netip.Addr {
	t.Helper()
	for _, a := range listen.Global([]netip.Addr{netip.IPv6Unspecified()}) {
		return a
	}
	t.Skip("this machine has no address but the loopback ones")
	return netip.Addr{}
}
