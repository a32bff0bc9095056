// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodecache/node-cache/pkg/config"
)

// Result is a configuration, with notes about what it does not contain.
type Result struct {
	Config config.Config // configuration of an agent; always valid
	Notes  []Note        // in the order of the files and their lines

	origins map[string]origin  // where each key's value comes from, by path
	blocks  map[place][]string // as [converter.blocks]
	service config.ServiceName // the Service of the cluster's DNS
}

// Note is about a part that could not be converted, or works differently.
type Note struct {
	File string `json:"file"`           // name of the input; for a kube-dns ConfigMap its key
	Line int    `json:"line,omitempty"` // from 1; 0: the whole file
	What string `json:"what"`           // the part as written
	Why  string `json:"why"`            // why it is missing, or what differs
	Hint string `json:"hint,omitempty"` // what to do instead; empty: nothing

	// Kept reports whether the part was converted and differs as Why says. False: it was not.
	Kept bool `json:"kept"`
	// Left reports whether the old server is asked for the names of the part, as before.
	Left bool `json:"left,omitempty"`
}

// String returns the note on one line, without its hint: Corefile:12: what: why.
func (n Note) String() string { return place{n.File, n.Line}.String() + ": " + n.What + ": " + n.Why }

// sortNotes sorts notes by position, stably.
func sortNotes(notes []Note) {
	slices.SortStableFunc(notes, func(a, b Note) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
}

// YAML returns the configuration as a file: the keys that differ from the defaults, each with its source line as a
// comment. The error is that of [config.MarshalChanges].
func (r *Result) YAML() ([]byte, error) {
	text, err := config.MarshalChanges(r.Config, config.Agent, func(path string) string { return r.origins[path].String() })
	if err != nil { // with its comments the file may be too large
		text, err = config.MarshalChanges(r.Config, config.Agent, func(string) string { return "" })
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the converted configuration: %w", err)
	}
	return text, nil
}

// Lost reports whether a note is about a part that was not converted.
func (r *Result) Lost() bool {
	return slices.ContainsFunc(r.Notes, func(n Note) bool { return !n.Kept })
}

// Settings of the DaemonSet in daemonset/base.
const (
	adminSocket    = "/run/pod/admin.sock"
	handoverSocket = "/run/node-cache/handover.sock"
	snapshotFolder = "/run/node-cache"
	adminPort      = 9253
	memoryLimit    = 144 // MiB
)

// noBind is the subject of the note about a server without its own address.
const noBind = "no bind"

// ForDaemonSet adds what the agents of daemonset/base need: an address of their own on the node, interception of its
// queries, the sockets and folders of the pod, and the address of the probes. It keeps converted values if possible. It
// fails if the result is not a valid configuration.
func (r *Result) ForDaemonSet() error {
	c, own := r.Config, netip.AddrFrom4([4]byte{169, 254, 20, 10})
	set := func(path string) { r.origins[path] = origin{text: "as daemonset/base has it"} }
	if !c.Interface.Manage && !slices.ContainsFunc(c.Listen.Addresses, netip.Addr.IsLinkLocalUnicast) {
		c.Listen.Addresses, c.Listen.Port = []netip.Addr{own}, 53
		set("listen.addresses")
	}
	c.Interface.Manage, c.Intercept.Manage = true, true
	if c.Cluster.Resolver == config.ResolverNone {
		c.Cluster.Resolver = config.ResolverLocal
		set("cluster.resolver")
	}
	if !c.Cluster.Central.IsSet() {
		c.Cluster.Central.Service = r.service
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
	sortNotes(r.Notes)
	return nil
}

// notePodChanges notes the changes that the DaemonSet needs for the configuration. Its HTTP probes use the address probed.
func (r *Result) notePodChanges(probed netip.Addr) {
	c := &r.Config
	note := func(what, why, hint string) {
		r.Notes = append(r.Notes, Note{File: "daemonset/base", What: what, Why: why, Hint: hint, Kept: true})
	}
	if first := c.Listen.Addresses[0]; first != probed {
		note("listen.addresses: "+first.String(), "its HTTP probes use "+probed.String()+", and restart agents that do not listen there",
			"patch both: {op: replace, path: /spec/template/spec/containers/0/livenessProbe/httpGet/host, value: "+strconv.Quote(first.String())+"}, and readinessProbe")
	}
	if c.Cluster.Resolver == config.ResolverLocal && c.Cluster.Pods == config.PodsVerified {
		note("cluster.pods: verified", "its agents have no permission to list pods, and are not ready without it",
			`add {apiGroups: [""], resources: [pods], verbs: [list, watch]} to the ClusterRole node-cache: daemonset/README.md`)
	}
	const mib = 1 << 20
	if need := (c.Cache.Size+2*c.Snapshot.Size+mib-1)/mib + 32; need > memoryLimit {
		note(fmt.Sprintf("cache.size: %dMi", c.Cache.Size/mib), fmt.Sprintf("its memory limit is %dMi, and %dMi are needed", memoryLimit, need),
			"patch the limit, or write a smaller cache.size: docs/memory.md")
	}
}
