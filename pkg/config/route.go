// SPDX-License-Identifier: Apache-2.0

package config

// routes reads the list of routes.
func routes(dst *[]Route) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		list := make([]Route, len(items))
		seen := map[string]string{}
		for i, item := range items {
			list[i] = item.route()
			name := list[i].Zone
			if first, again := seen[name]; again && name != "" {
				item.report.add(Problem{Path: item.child("zone"), What: quote(name) + ": already at " + first})
				continue
			}
			seen[name] = item.path
		}
		// A zone that could not be read may have been the root.
		if seen["."] == "" && seen[""] == "" {
			n.report.add(Problem{
				Path: n.path, What: `no route for the zone "."`,
				Hint: `add {zone: ".", to: ["/etc/resolv.conf"]}`,
			})
		}
		*dst = list
	}
}

// route returns the value of n as far as it is right, and reports what is not.
func (n node) route() Route {
	var r Route
	if !n.fields(routeFields(&r)) {
		return r
	}
	if r.Zone == "" && n.report.clean(n.child("zone")) {
		n.report.add(Problem{Path: n.child("zone"), What: "missing", Hint: `write "." for all names`})
	}
	if len(r.To) == 0 && n.report.clean(n.child("to")) {
		n.report.add(Problem{Path: n.child("to"), What: "missing", Hint: "name at least one upstream"})
	}
	return r
}
