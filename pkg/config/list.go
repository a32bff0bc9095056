// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

// set reads a list whose items may each stand in it once. An empty list is nil.
func set[T comparable](dst *[]T, read func(node) (T, bool)) func(node) {
	return func(n node) {
		if items, ok := n.items(); ok {
			*dst = unique(items, read)
		}
	}
}

// unique reads items, and reports each that is there already.
func unique[T comparable](items []node, read func(node) (T, bool)) []T {
	var list []T
	seen := map[T]string{}
	for _, item := range items {
		v, ok := read(item)
		if !ok {
			continue
		}
		if first, again := seen[v]; again {
			item.reject("already at "+first, "")
			continue
		}
		seen[v] = item.path
		list = append(list, v)
	}
	return list
}

// distinct returns list without the items that stand in it before.
func distinct[T comparable](list []T) []T {
	var kept []T
	for _, v := range list {
		if !slices.Contains(kept, v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// list reads a list whose items may stand in it again. An empty list is nil.
func list[T any](dst *[]T, read func(node) (T, bool)) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		var values []T
		for _, item := range items {
			if v, ok := read(item); ok {
				values = append(values, v)
			}
		}
		*dst = values
	}
}
