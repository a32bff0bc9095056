// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"regexp"
	"strconv"
	"strings"
)

// CiliumSettings are Cilium's version and options.
type CiliumSettings struct {
	Version string            // such as "1.15.19"; empty: unknown
	Options map[string]string // of those that CiliumOptions names; absent: the default
}

const optionScope = "local-max-addr-scope"

// CiliumOptions returns the names of the options that matter to the agent, with those of 1.14 to 1.20.
func CiliumOptions() []string {
	return []string{
		"enable-host-firewall", "enable-host-legacy-routing", "enable-bpf-masquerade", "enable-ipv4-masquerade", "enable-ipv6-masquerade", "enable-ipv6",
		"enable-ipsec", "kube-proxy-replacement", optionScope,
	}
}

// On reports whether an option is on. The replacement of kube-proxy was "strict" before 1.14.
func (c *CiliumSettings) On(name string) bool {
	return c.Options[name] == "true" || c.Options[name] == "strict"
}

// BPFHostRouting reports whether Cilium bypasses the node's stack on the way of packets from pods, as it is configured: it falls back to
// legacy host routing where something needs that stack.
func (c *CiliumSettings) BPFHostRouting() bool {
	masquerade := c.Options["enable-ipv4-masquerade"] != "false" || c.Options["enable-ipv6"] != "false" && c.Options["enable-ipv6-masquerade"] != "false"
	return c.On("kube-proxy-replacement") && (c.On("enable-bpf-masquerade") || !masquerade) && !c.On("enable-host-legacy-routing") && !c.On("enable-ipsec")
}

// TakesHostScope reports whether Cilium takes addresses of scope host for those of the node. Before 1.18 it does not, unless its option
// says so, and since 1.19 it does. ok is false if that is not known: 1.18 may have either, and the version may be unknown.
func (c *CiliumSettings) TakesHostScope() (takes, ok bool) {
	const scopeHost = 254
	scope := c.Options[optionScope]
	if n, _ := strconv.Atoi(scope); n >= scopeHost || scope == "host" || scope == "nowhere" {
		return true, true
	}
	minor, known := c.minor()
	return minor >= 19, known && minor != 18
}

// LosesHostScope reports whether packets of pods to addresses of scope host never arrive: neither at the agent, nor at its rules.
func (c *CiliumSettings) LosesHostScope() bool {
	takes, known := c.TakesHostScope()
	return known && !takes && c.BPFHostRouting()
}

// minor returns the second number of a version 1.x.
func (c *CiliumSettings) minor() (n int, known bool) {
	parts := strings.Split(c.Version, ".")
	if len(parts) < 2 || parts[0] != "1" {
		return 0, false
	}
	n, err := strconv.Atoi(parts[1])
	return n, err == nil
}

// ImageVersion returns the version that the tag of an image of Cilium names; empty: none.
func ImageVersion(image string) string {
	image, _, _ = strings.Cut(image, "@")
	found := regexp.MustCompile(`:v?([0-9]+\.[0-9]+\.[0-9][0-9A-Za-z.-]*)$`).FindStringSubmatch(image)
	if found == nil {
		return ""
	}
	return found[1]
}
