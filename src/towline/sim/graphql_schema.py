"""The part of GitHub's GraphQL schema that reading pull requests needs."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = """
scalar DateTime
scalar URI
scalar GitObjectID

enum PullRequestState { OPEN CLOSED MERGED }
enum MergeableState { MERGEABLE CONFLICTING UNKNOWN }
enum MergeStateStatus { BEHIND BLOCKED CLEAN DIRTY DRAFT HAS_HOOKS UNKNOWN UNSTABLE }
enum PullRequestReviewDecision { APPROVED CHANGES_REQUESTED REVIEW_REQUIRED }
enum PullRequestReviewState { APPROVED CHANGES_REQUESTED COMMENTED DISMISSED PENDING }
enum StatusState { ERROR EXPECTED FAILURE PENDING SUCCESS }
enum CheckStatusState { COMPLETED IN_PROGRESS PENDING QUEUED REQUESTED WAITING }
enum CheckConclusionState {
  ACTION_REQUIRED CANCELLED FAILURE NEUTRAL SKIPPED STALE STARTUP_FAILURE SUCCESS TIMED_OUT
}
enum OrderDirection { ASC DESC }
enum IssueOrderField { COMMENTS CREATED_AT UPDATED_AT }
input IssueOrder { field: IssueOrderField! direction: OrderDirection! }

type PageInfo {
  hasNextPage: Boolean!
  hasPreviousPage: Boolean!
  startCursor: String
  endCursor: String
}

type Query {
  viewer: User!
  rateLimit: RateLimit
  repository(owner: String!, name: String!): Repository
}

type RateLimit {
  limit: Int!
  cost: Int!
  remaining: Int!
  used: Int!
  resetAt: DateTime!
  nodeCount: Int!
}

interface Actor { login: String! url: URI! avatarUrl: URI! }
type User implements Actor { id: ID! databaseId: Int login: String! url: URI! avatarUrl: URI! }
type Bot implements Actor { id: ID! databaseId: Int login: String! url: URI! avatarUrl: URI! }
type Organization implements Actor {
  id: ID! databaseId: Int login: String! url: URI! avatarUrl: URI!
}

type Ref { name: String! prefix: String! target: Commit }

type Repository {
  id: ID!
  databaseId: Int
  name: String!
  nameWithOwner: String!
  url: URI!
  isPrivate: Boolean!
  defaultBranchRef: Ref
  pullRequest(number: Int!): PullRequest
  pullRequests(
    states: [PullRequestState!] labels: [String!] headRefName: String baseRefName: String
    orderBy: IssueOrder first: Int last: Int after: String before: String
  ): PullRequestConnection!
}

type PullRequestConnection {
  totalCount: Int!
  pageInfo: PageInfo!
  nodes: [PullRequest]
}

type PullRequest {
  id: ID!
  databaseId: Int
  fullDatabaseId: String
  number: Int!
  title: String!
  body: String!
  state: PullRequestState!
  isDraft: Boolean!
  closed: Boolean!
  merged: Boolean!
  url: URI!
  headRefName: String!
  headRefOid: GitObjectID!
  baseRefName: String!
  baseRefOid: GitObjectID!
  headRepository: Repository
  isCrossRepository: Boolean!
  author: Actor
  mergedBy: Actor
  mergeable: MergeableState!
  mergeStateStatus: MergeStateStatus!
  mergeCommit: Commit
  reviewDecision: PullRequestReviewDecision
  createdAt: DateTime!
  updatedAt: DateTime!
  closedAt: DateTime
  mergedAt: DateTime
  additions: Int!
  deletions: Int!
  changedFiles: Int!
  labels(first: Int last: Int after: String before: String): LabelConnection
  comments(first: Int last: Int after: String before: String): IssueCommentConnection!
  reviews(
    states: [PullRequestReviewState!] author: String
    first: Int last: Int after: String before: String
  ): PullRequestReviewConnection
  latestReviews(
    first: Int last: Int after: String before: String writersOnly: Boolean = false
  ): PullRequestReviewConnection
  latestOpinionatedReviews(
    first: Int last: Int after: String before: String writersOnly: Boolean = false
  ): PullRequestReviewConnection
  commits(first: Int last: Int after: String before: String): PullRequestCommitConnection!
}

type Label { id: ID! name: String! color: String! description: String }
type LabelConnection { totalCount: Int! pageInfo: PageInfo! nodes: [Label] }

type IssueComment {
  id: ID!
  databaseId: Int
  fullDatabaseId: String
  author: Actor
  body: String!
  url: URI!
  createdAt: DateTime!
  updatedAt: DateTime!
}
type IssueCommentConnection { totalCount: Int! pageInfo: PageInfo! nodes: [IssueComment] }

type PullRequestReview {
  id: ID!
  databaseId: Int
  fullDatabaseId: String
  author: Actor
  body: String!
  state: PullRequestReviewState!
  url: URI!
  commit: Commit
  submittedAt: DateTime
  updatedAt: DateTime!
}
type PullRequestReviewConnection {
  totalCount: Int!
  pageInfo: PageInfo!
  nodes: [PullRequestReview]
}

type PullRequestCommit { id: ID! commit: Commit! }
type PullRequestCommitConnection {
  totalCount: Int!
  pageInfo: PageInfo!
  nodes: [PullRequestCommit]
}

type Commit {
  id: ID!
  oid: GitObjectID!
  message: String!
  messageHeadline: String!
  committedDate: DateTime!
  authoredDate: DateTime!
  statusCheckRollup: StatusCheckRollup
  checkSuites(first: Int last: Int after: String before: String): CheckSuiteConnection
}

type StatusCheckRollup {
  id: ID!
  state: StatusState!
  contexts(
    first: Int last: Int after: String before: String
  ): StatusCheckRollupContextConnection!
}
union StatusCheckRollupContext = CheckRun | StatusContext
type StatusCheckRollupContextConnection {
  totalCount: Int!
  pageInfo: PageInfo!
  nodes: [StatusCheckRollupContext]
}

type App { id: ID! databaseId: Int slug: String! name: String! }
type WorkflowRun { id: ID! databaseId: Int runNumber: Int! event: String! url: URI! }

type CheckSuite {
  id: ID!
  databaseId: Int
  fullDatabaseId: String
  status: CheckStatusState!
  conclusion: CheckConclusionState
  app: App
  workflowRun: WorkflowRun
  createdAt: DateTime!
  updatedAt: DateTime!
}
type CheckSuiteConnection { totalCount: Int! pageInfo: PageInfo! nodes: [CheckSuite] }

type CheckRun {
  id: ID!
  databaseId: Int
  fullDatabaseId: String
  name: String!
  status: CheckStatusState!
  conclusion: CheckConclusionState
  startedAt: DateTime
  completedAt: DateTime
  detailsUrl: URI
  url: URI!
  title: String
  summary: String
  text: String
  externalId: String
  checkSuite: CheckSuite!
}

type StatusContext {
  id: ID!
  context: String!
  state: StatusState!
  description: String
  targetUrl: URI
  creator: Actor
  createdAt: DateTime!
}
"""
