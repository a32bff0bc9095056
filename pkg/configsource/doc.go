// SPDX-License-Identifier: Apache-2.0

// Package configsource reads an agent's configuration, watches it, and reports changes.
//
// The configuration is in a file, possibly in a mounted folder, or in a ConfigMap that is watched through the API. The stub
// domains and nameservers of a kube-dns ConfigMap, mounted as a folder, can be merged into its routes. The result is one
// configuration: while either part is invalid, the running configuration stays.
//
// The last applied configuration is saved on disk, for a start without a usable one. A refused configuration is reported
// as an Event on the agent's pod. Neither delays a reload.
package configsource
