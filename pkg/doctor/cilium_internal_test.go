// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

func TestReadCilium(t *testing.T) {
	t.Parallel()
	const folder = "7/root/tmp/cilium/config-map/"
	agent := map[string]string{
		"7/comm": "cilium-agent\n", "7/cmdline": "cilium-agent\x00--config-dir=/tmp/cilium/config-map\x00--enable-ipv6=true\x00",
		folder + "enable-host-firewall": "true\n", folder + "enable-ipv6": "false", folder + "kube-proxy-replacement@": "..data/kube-proxy-replacement",
		folder + "..data/kube-proxy-replacement": "strict", folder + "unknown": "true",
		"7/ns/mnt@": "mnt:[2]", "7/ns/pid@": "pid:[2]", // it runs in a container
	}
	options := map[string]string{"enable-host-firewall": "true", "enable-ipv6": "true", "kube-proxy-replacement": "strict"}
	for _, tt := range []struct {
		name   string
		others map[string]string // in place of those of the agent
		want   Cilium
		bad    bool
	}{
		{name: "the agent", want: Cilium{Seen: true, Options: options}},
		{name: "another program", others: map[string]string{"7/comm": "cilium-agent2\n"}},
		{name: "a pod's process of that name", others: map[string]string{"7/ns/net@": "net:[2]"}},
		{name: "in a user namespace", others: map[string]string{"7/ns/user@": "user:[2]"}},
		{name: "of another user", others: map[string]string{"7/status": "Name:\tx\nUid:\t1000\t0\t0\t0\n"}},
		{name: "flags only", others: map[string]string{"7/cmdline": "cilium-agent\x00--local-max-addr-scope\x00254\x00"}, want: Cilium{Seen: true, Options: map[string]string{"local-max-addr-scope": "254"}}},
		{name: "one that has ended", others: map[string]string{"7/cmdline": ""}, bad: true},
	} {
		files := namespaces("1", namespaces("self", namespaces("7", agent)))
		maps.Copy(files, tt.others)
		maps.DeleteFunc(files, func(_, text string) bool { return text == "" })
		proc := tree(t, files)
		got := readCilium(t.Context(), proc, filepath.Join(proc, "self"), []netip.Addr{netip.MustParseAddr("169.254.20.10")}, direct)
		if (got.Err != nil) != tt.bad || !errors.Is(got.LocalErr, fs.ErrNotExist) {
			t.Errorf("%s: errors %v, want one: %t, and %v, want no map", tt.name, got.Err, tt.bad, got.LocalErr)
		}
		got.Err, got.LocalErr = nil, nil
		assert.Same(t, tt.name, tt.want, got)
	}
}

func TestCiliumVersion(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		`-X "github.com/cilium/cilium/pkg/version.ciliumVersion=1.15.19 8d5f1b3c 2025-01-02T03:04:05+00:00" -s -w`: "1.15.19",
		`-X 'github.com/cilium/cilium/pkg/version.ciliumVersion=1.20.0-rc.1 8d5f'`:                                 "1.20.0-rc.1",
		"-s -w": "",
	} {
		assert.Same(t, flags, want, versionIn(flags))
	}
	assert.Same(t, "a program that is not Cilium", "", ciliumVersion("/proc/self/exe"))
}
