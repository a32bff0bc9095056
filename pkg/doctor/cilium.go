// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// Cilium is what its process and its maps say. They are visible as root on the node, or in a pod with hostPID.
type Cilium struct {
	Seen    bool              // its process was found: Options are complete
	Version string            // such as "1.15.19"; empty: unknown
	Options map[string]string // its settings, of those that dataplane.CiliumOptions names; absent: the default
	Err     error             // why the process could not be read

	Local    map[netip.Addr]bool // whether it takes an address for one of the node
	LocalErr error
}

// settings returns its version and options.
func (c *Cilium) settings() *dataplane.CiliumSettings {
	return &dataplane.CiliumSettings{Version: c.Version, Options: c.Options}
}

// readCilium reads the settings of the process cilium-agent, and its map of addresses.
func readCilium(ctx context.Context, proc, self string, addrs []netip.Addr, read readFunc) (c Cilium) {
	c.Local, c.LocalErr = dataplane.CiliumLocal("", addrs)
	if errors.Is(c.LocalErr, os.ErrNotExist) {
		c.Local, c.LocalErr = dataplane.CiliumLocal(filepath.Join(proc, "1/root"), addrs)
	}
	for _, p := range processes(proc) {
		if name, _ := os.ReadFile(filepath.Join(p, "comm")); strings.TrimSpace(string(name)) != "cilium-agent" {
			continue
		}
		// It runs in a container, with the node's network. A pod's process of that name does not count.
		if is, err := inNodeNetwork(p, self); err != nil || !is {
			c.Err = errors.Join(c.Err, err)
			continue
		}
		options, err := ciliumSettings(ctx, p, read)
		if err != nil {
			c.Err = errors.Join(c.Err, err)
			continue
		}
		c.Seen, c.Options, c.Version, c.Err = true, options, ciliumVersion(filepath.Join(p, "exe")), nil
		return c
	}
	return c
}

// ciliumSettings reads the command line of the process with the folder p, and the folder of its flag --config-dir, which has a file for
// each setting.
func ciliumSettings(ctx context.Context, p string, read readFunc) (map[string]string, error) {
	line, err := os.ReadFile(filepath.Join(p, "cmdline"))
	if err != nil {
		return nil, fmt.Errorf("reading Cilium's command line: %w", err)
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	folder := flag(args, "config-dir")
	options := map[string]string{}
	for _, name := range dataplane.CiliumOptions() {
		value := flag(args, name)
		if value == "" && folder != "" {
			file, err := read(ctx, filepath.Join(p, "root"), filepath.Join(folder, name))
			if err != nil {
				return nil, err
			}
			value = strings.TrimSpace(string(file.Text))
		}
		if value != "" {
			options[name] = value
		}
	}
	return options, nil
}

// ciliumVersion returns the version that the build of a program has set; empty: unknown.
func ciliumVersion(program string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "-ldflags" {
			return versionIn(s.Value)
		}
	}
	return ""
}

// versionIn returns the version that the flags of Cilium's linker set.
func versionIn(flags string) string {
	found := regexp.MustCompile(`cilium/pkg/version\.ciliumVersion=([0-9]+\.[0-9]+\.[0-9][0-9A-Za-z.-]*)`).FindStringSubmatch(flags)
	if found == nil {
		return ""
	}
	return found[1]
}

// hostRouting describes its way to the node's addresses, as it is configured.
func (c *Cilium) hostRouting() string {
	switch {
	case !c.Seen:
		return "host routing unknown"
	case c.settings().BPFHostRouting():
		return bpfRouting
	}
	return "legacy host routing"
}

const bpfRouting = "BPF host routing"

// describe returns what is known.
func (c *Cilium) describe(found *dataplane.Found) string {
	parts := []string{
		"version unknown", "native routing", c.hostRouting(), "host firewall unknown", "no rule exempts pods from conntrack",
	}
	if c.Version != "" {
		parts[0] = "version " + c.Version
	}
	if found.Tunnel != "" {
		parts[1] = "tunnel " + found.Tunnel
	}
	if c.Seen {
		parts[3] = "host firewall off"
		if c.settings().On("enable-host-firewall") {
			parts[3] = "host firewall on"
		}
		if c.settings().On("kube-proxy-replacement") {
			parts[0] += " in place of kube-proxy"
		} else {
			parts[0] += " beside kube-proxy"
		}
	}
	hidden := func(e string) bool {
		return strings.HasPrefix(e, "cannot read nftables") || strings.HasPrefix(e, "cannot read iptables-legacy")
	}
	switch {
	case len(found.Untracked) > 0:
		parts[4] = "pods are exempt from conntrack in " + strings.Join(found.Untracked, ", ")
	case slices.ContainsFunc(found.Evidence, hidden):
		parts[4] = "whether pods are exempt from conntrack unknown"
	}
	return strings.Join(parts, "; ")
}

// checkCilium checks what in Cilium's settings breaks the agent or its fallback. It names the policy engines, Cilium or others, whose
// policies the doctor does not read.
func checkCilium(e *checker) {
	if list := e.DataPlane.Policies; len(list) > 0 {
		e.add("policies", row{true, OK, strings.Join(list, ", ") + ": policies must allow port 53 to the addresses that pods query", ""})
	}
	if e.DataPlane.Proxy != dataplane.Cilium {
		return
	}
	c, what := &e.Cilium, e.Cilium.describe(&e.DataPlane)
	onBridge := slices.IndexFunc(e.Addresses, func(a Address) bool { return a.Kind == "bridge" })
	e.add("cilium",
		row{
			onBridge >= 0, Warn, what + ". It takes an address on a bridge for one of the world, not of the node",
			"set interface.kind: auto",
		},
		row{
			otherVariant(&e.Facts), Warn, what + ". The agent's rules may come after Cilium's, and the fallback's answers are lost then",
			"set intercept.backend: auto",
		},
		row{c.Err != nil, Skip, fmt.Sprintf("%s. Its process: %v", what, c.Err), fixVisible},
		row{true, OK, what, ""})
	if !e.Intercept || e.Rules.Mode != rules.LinkLocal {
		return
	}
	for _, a := range e.Rules.Addresses {
		if a.Is4() || c.Options["enable-ipv6"] == "true" {
			checkCiliumAddress(e, a)
		}
	}
}

// otherVariant reports whether the agent's rules are in another variant of iptables than those by which Cilium exempts pods from
// conntrack.
func otherVariant(f *Facts) bool {
	return slices.ContainsFunc(f.Backends, func(b rules.State) bool {
		return strings.HasPrefix(b.Backend, "iptables-") && slices.ContainsFunc(f.DataPlane.Untracked, func(where string) bool { return !strings.HasPrefix(where, b.Backend) })
	})
}

// checkCiliumAddress checks whether Cilium takes an address of scope host for one of the node. Before 1.19 it does not, unless its
// option says so. With BPF host routing the queries then leave by a network interface. Otherwise they arrive, but policies take the
// address for one of the world.
func checkCiliumAddress(e *checker, a netip.Addr) {
	const (
		fix   = `set Cilium's option local-max-addr-scope: "254" (Helm: extraConfig), or upgrade it to 1.19`
		wrong = "Cilium does not take it for an address of the node: "
		world = "policies take it for the world"
	)
	c := &e.Cilium
	takes, known := c.settings().TakesHostScope()
	lost := row{c.hostRouting() == bpfRouting, Fail, wrong + "queries of pods are lost", fix}
	e.add("cilium "+a.String(),
		row{c.LocalErr == nil && c.Local[a], OK, "Cilium takes it for an address of the node", ""},
		row{c.LocalErr == nil && lost.when, lost.verdict, lost.what, lost.fix},
		row{c.LocalErr == nil && c.Seen, Warn, wrong + world, fix},
		row{c.LocalErr == nil, Warn, wrong + world + ", and with BPF host routing queries of pods are lost", fix},
		row{known && takes, OK, "Cilium takes addresses of scope host for those of the node", ""},
		row{c.Seen && known && lost.when, lost.verdict, lost.what, lost.fix},
		row{c.Seen && known, Warn, wrong + world, fix},
		unknown(c.LocalErr, fixVisible))
}
