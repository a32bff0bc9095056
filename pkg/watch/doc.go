// SPDX-License-Identifier: Apache-2.0

// Package watch keeps the zone's store equal to a cluster's objects.
package watch
