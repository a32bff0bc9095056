// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// A Federation makes <service>.<namespace>.<Name>.svc an alias of the service here or, if it cannot be reached here, of one in
// the federation. kube-dns gave the addresses of a service here without an alias; but SRV records need the names that are below it.
type Federation struct {
	Name   string // a label
	Suffix string // what replaces the cluster domain in the alias: "<zone>.<region>.example.com."; empty: not known yet
}

// suffixesOf returns the suffixes in canonical wire form, by name. A suffix that a Node's label makes invalid is empty.
func suffixesOf(list []Federation) map[string]string {
	suffixes := make(map[string]string, len(list))
	for _, f := range list {
		suffixes[f.Name] = ""
		if suffix, err := wireName(f.Suffix); err == nil && f.Suffix != "" {
			suffixes[f.Name] = suffix
		}
	}
	return suffixes
}

// federated returns the alias of a name in a federation with that suffix.
func (r *reply) federated(suffix string) (alias string, res Result) {
	r.ttl = r.z.ttl
	if r.reachable() {
		return string(r.labelRange(0, 2)) + r.z.tree + string(r.z.domain), res
	}
	if suffix == "" || !r.complete(needsEndpoints) {
		return "", r.answerUnknown()
	}
	if alias = string(r.labelRange(0, r.labels)) + suffix; len(alias) > wire.MaxName {
		return "", r.nxdomain(needsNothing)
	}
	return alias, res
}

// reachable reports whether the service in the current name has an address here.
func (r *reply) reachable() bool {
	if ok, _ := r.z.exposes(r.labelRange(1, 2)); !ok {
		return false
	}
	n, _ := r.z.cfg.Store.findNode(r.labelRange(0, 2))
	return n != nil && n.svc != nil && (n.svc.typ == ExternalName || n.hasPublished())
}
