// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodecache/node-cache/pkg/config"
)

// Settings of the DaemonSet in daemonset/base.
const (
	adminSocket    = "/run/pod/admin.sock"
	handoverSocket = "/run/node-cache/handover.sock"
	snapshotFolder = "/run/node-cache"
	adminPort      = 9253
	memoryLimit    = 144 // MiB
)

// ForDaemonSet adds what the agents of daemonset/base need: an address of their own on the node, interception of its
// queries, the sockets and folders of the pod, and the address of the probes. It keeps converted values if possible. It
// fails if the result is not a valid configuration.
func (r *Result) ForDaemonSet() error {
	c, own := r.Config, netip.AddrFrom4([4]byte{169, 254, 20, 10})
	const why = "as daemonset/base has it"
	set := func(path string) { r.sources[path] = why }
	if !slices.ContainsFunc(c.Listen.Addresses, netip.Addr.IsLinkLocalUnicast) {
		c.Listen.Addresses, c.Listen.Port = []netip.Addr{own}, 53
		set("listen.addresses")
	}
	c.Interface.Manage, c.Intercept.Manage = true, true
	if c.Cluster.Resolver == config.ResolverNone {
		c.Cluster.Resolver = config.ResolverLocal
		set("cluster.resolver")
	}
	if !c.Cluster.Central.IsSet() {
		c.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
		set("cluster.central.service")
	}
	c.Snapshot.Folder, c.Handover.Socket, c.Admin.Socket = snapshotFolder, handoverSocket, adminSocket
	set("snapshot.folder")
	set("handover.socket")
	set("admin.socket")
	if at := c.Admin.Address; at.Port() != adminPort || !at.Addr().IsUnspecified() {
		c.Admin.Address = netip.AddrPortFrom(c.Listen.Addresses[0], adminPort)
		set("admin.address")
	}
	c, err := config.Normalize(c, config.Agent)
	if err != nil {
		return fmt.Errorf("fitting the configuration to the DaemonSet: %w", err)
	}
	r.Config = c
	r.Notes = slices.DeleteFunc(r.Notes, func(n Note) bool { return n.What == noBind })
	r.notePodChanges(own)
	r.Notes = inOrder(r.Notes)
	return nil
}

// notePodChanges notes the changes that the DaemonSet needs for the configuration. Its HTTP probes use an address.
func (r *Result) notePodChanges(asked netip.Addr) {
	c := &r.Config
	tell := func(what, why, hint string) {
		r.Notes = append(r.Notes, Note{File: "daemonset/base", What: what, Why: why, Hint: hint, Kept: true})
	}
	if first := c.Listen.Addresses[0]; first != asked {
		tell("listen.addresses: "+first.String(), "its HTTP probes use "+asked.String()+", and restart agents that do not listen there",
			"patch both: {op: replace, path: /spec/template/spec/containers/0/livenessProbe/httpGet/host, value: "+strconv.Quote(first.String())+"}, and readinessProbe")
	}
	if c.Cluster.Resolver == config.ResolverLocal && c.Cluster.Pods == config.PodsVerified {
		tell("cluster.pods: verified", "its agents have no permission to list pods, and are not ready without it",
			`add {apiGroups: [""], resources: [pods], verbs: [list, watch]} to the ClusterRole node-cache: daemonset/README.md`)
	}
	const mib = 1 << 20
	if need := (c.Cache.Size+2*c.Snapshot.Size+mib-1)/mib + 32; need > memoryLimit {
		tell(fmt.Sprintf("cache.size: %dMi", c.Cache.Size/mib), fmt.Sprintf("its memory limit is %dMi, and %dMi are needed", memoryLimit, need),
			"patch the limit, or write a smaller cache.size: docs/memory.md")
	}
}
