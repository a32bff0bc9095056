// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A detail says how a reply was made, beyond its source. What does not apply is empty.
//
// It is for explanations, query logs and dnstap, which only the node's operator reads: it names upstreams and objects. What
// clients see of it is the Extended DNS Error.
type detail struct {
	upstream string         // that answered, or that failed last, such as udp://192.0.2.1:53
	failure  string         // what was wrong with it, or why none was asked, one word
	shed     string         // the limit that shed the query, one of Sheds
	denial   zone.Denial    // why the zone denies the name or the type
	below    string         // denied name that covers all names below it
	block    blocklist.Rule // with SourceBlock: the rule of the list
	rule     string         // what of the configuration decides, see [localdata.Data.Rule], or specialNames
}

// members returns the members with their names. An empty value is left out of texts.
func (d *detail) members() [7][2]string {
	list, rule := "", d.rule
	if d.block.List != nil {
		list, rule = d.block.List.Name, string(d.block.AppendText(nil))
	}
	return [...][2]string{
		{"upstream", d.upstream},
		{"failure", d.failure},
		{"reason", d.shed},
		{"denied", d.denial.String()},
		{"below", d.below},
		{"list", list},
		{"rule", rule},
	}
}

// detail returns the detail of the answer from memory. It costs as much as the answer: it is for those who ask.
func (l *lookup) detail(source Source) (d detail) {
	name := l.Name()
	switch source {
	case SourceBlock:
		d.block = l.worker.rule
	case SourceZone:
		d.denial = l.plan.Zones.Explain(l.denial, name)
	case SourceStatic:
		if l.plan.LocalData != nil {
			d.rule = l.plan.LocalData.Rule(&l.Query)
		}
	case SourceCache:
		if l.cut > 0 {
			d.below = string(wire.AppendText(nil, name[len(name)-int(l.cut):]))
		}
		d.rule = l.plan.route(name).rule()
	default: // there is no more to say
	}
	return d
}
