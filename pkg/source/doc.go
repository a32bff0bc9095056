// SPDX-License-Identifier: Apache-2.0

// Package source brings an agent its configuration, from where it is kept to where it is used.
//
// It is kept in a file, a mounted folder's included, or in a ConfigMap that is followed through the API. The stub domains and
// nameservers of a kube-dns ConfigMap, a mounted folder too, may be laid over its routes. Both are one configuration: while
// either is bad, nothing new is put to work, and the one before stays.
//
// What was put to work last is kept on disk, for a start at which there is nothing good to be had. What was refused is told
// to the cluster as an Event on the agent's own pod. Neither is ever waited for.
package source
