// SPDX-License-Identifier: Apache-2.0

package zone

import "github.com/nodecache/node-cache/pkg/wire"

// A Federation makes <service>.<namespace>.<Name>.svc a name of the service here or, if it cannot be reached here, an alias in
// the federation, as kube-dns did.
type Federation struct {
	Name   string // a label
	Suffix string // what replaces the cluster domain in the alias: "<zone>.<region>.example.com."; empty: not known yet
}

// suffixesOf returns the suffixes in canonical wire form, by name. One that is no name, because of a Node's label, is empty.
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

// federation returns the suffix in wire form of the federation that the current name belongs to.
func (r *reply) federation() (suffix string, ok bool) {
	if len(r.z.federations) == 0 || r.labels != depthService+1 {
		return "", false
	}
	suffix, ok = r.z.federations[string(r.label(2))]
	return suffix, ok
}

// federated answers the name of a service in a federation with that suffix.
func (r *reply) federated(suffix string) (alias string, res Result) {
	if n := r.reachable(); n != nil {
		return r.ofService(n, 0)
	}
	if suffix == "" || !r.complete(needsEndpoints) {
		return "", r.answerUnknown()
	}
	r.ttl = r.z.ttl
	if alias = string(r.labelRange(0, r.labels)) + suffix; len(alias) > wire.MaxName {
		return "", r.nxdomain(needsNothing)
	}
	return alias, res
}

// reachable returns the node of the service in the current name if it has an address here, else nil.
func (r *reply) reachable() *node {
	if ok, _ := r.z.exposes(r.labelRange(1, 2)); !ok {
		return nil
	}
	n, _ := r.z.cfg.Store.findNode(r.labelRange(0, 2))
	if n == nil || n.svc == nil || n.svc.typ != ExternalName && !n.hasPublished() {
		return nil
	}
	return n
}
