r"""What CI logs say when they fail, as data: rules in the order in which they are asked.

The first rule that matches decides, so the order is the argument:

1. `MACHINE_LOST`    the job never ran to its end; whatever else was printed proves nothing.
2. `CODE_FAULTS`     a cause that the next run will meet again, named by the tool that found it.
3. `INFRASTRUCTURE`  network, registry, machine or service gave way. Such a fault explains the
                     failed tests that follow from it, but does not excuse a code fault.
4. `FAILED_TESTS`    tests failed, and nothing so far says why.
5. `WEAK_SIGNS`      words such as "timed out", which count only if nothing better was said, and
                     only near the end of the log.

Each table is text: a line "name: reason", and below it, indented, the alternatives of one
regex; a line indented further continues the one above it. The regexes are in small letters and
are searched in a log put into small letters, which takes a third of the time of ignoring case.
`^` and `$` stand for the ends of a line, `.` stays within one, and gaps are bounded
(`.{0,60}`), so that a search takes time linear in the length of the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from towline_once.errors import Rejected

Kind = Literal["transient", "persistent"]


@lru_cache(maxsize=1024)
def compiled(regex: str, flags: re.RegexFlag = re.MULTILINE) -> re.Pattern[str]:
    return re.compile(regex, flags)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One rule: a log that matches `regex` failed in this way, for this reason."""

    name: str
    kind: Kind
    regex: str
    reason: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise Rejected(f"pattern {self.name!r}: kind must be transient or persistent")
        try:
            compiled(self.regex).search("")
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise Rejected(f"pattern {self.name!r}: not a regular expression: {error}") from error


def rules(kind: Kind, table: str) -> tuple[Pattern, ...]:
    """The rules of a table, all of one kind."""
    found: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, table.splitlines()):
        if line.startswith("    "):
            found[-1][1][-1] += line.strip()
        elif line.startswith("  "):
            found[-1][1].append(line.strip())
        else:
            found.append((line, []))
    return tuple(
        Pattern(name, kind, "|".join(alternatives), reason.strip())
        for title, alternatives in found
        for name, _, reason in [title.partition(":")]
    )


MACHINE_LOST = rules(
    "transient",
    r"""
runner-lost: the machine that ran the job went away
  \b(?:runner|agent|node|slave|executor|worker|build host|machine)\b.{0,60}lost communication
  (?:runner|agent|node|slave|worker|machine) (?:went|is|appears to be|has gone) (?:offline|dead)
  (?:runner|agent|node|slave|worker) (?:was removed|died|has disconnected|shut ?down unexpectedly)
  (?:received a|got a|due to) shutdown signal|stopped hearing from (?:the )?(?:agent|runner|worker)
  hosted runner encountered an error|job was (?:not acquired|abandoned)|no longer a configured node
  lost (?:connection|contact|communication) (?:to|with) (?:the )?(?:agent|runner|node|worker)
  \bchannel\b.{0,80}(?:is|was|has) (?:already )?(?:closed|closing|disconnected)
  closedchannelexception|channelclosedexception|requestabortedexception
  unexpected termination of the channel|remote file operation failed|agentoffline
  severe error occurs|cannot contact [\w.-]{1,80}: java|gearman (?:job has failed|server)
  abandoned due to an infra|(?:marked|taken|went) offline|\bnode is being removed
  unable to \w{1,10} (?:a )?(?:script file|live filepath)|actions has encountered an internal error
  error occurred while generating the build script
no-runner: no machine could be had for the job
  no (?:available |idle |healthy )?(?:runners?|agents?|executors?) (?:is|are|was|were|could)\b
  \bnode_failure\b|\bretry_limit\b|runner[ _]system[ _]failure|job failed \(system failure\)
  fail\w{0,20} (?:to )?(?:allocat|acquir|provision)\w{0,20} (?:an? |the )?(?:runner|agent|node
    |executor|slave)
  waiting for pod running|pod failed to come online|\bpod\b.{0,120}unhealthy with phase
  no nodes (?:are )?(?:available|ready)
  (?:could(?: not|n.t)|unable to) find an?(?:y)? (?:worker|node)\b
evicted: the scheduler took the machine away
  \bpod\b.{0,80}\b(?:evicted|preempted|was deleted)|\boomkilled\b|spot instance (?:interr|termin)
  (?:instance|vm|node) (?:was |has been )?(?:preempted|evicted|reclaimed|drained)|nodenotready
  node was low on resource|request to deprovision
unreachable-host: the job's own host stopped answering
  result_unreachable|: unreachable!|\bunreachable=[1-9]|\bdisk_full\b
""",
)

CODE_FAULTS = rules(
    "persistent",
    r"""
merge-conflict: the branch does not merge
  ^conflict \(|merge conflict in |automatic merge failed|needs merge$|unmerged (?:paths|files)
  could not apply [0-9a-f]{6,40}|patch does not apply|^<<<<<<< |merger_failure|hunks? failed
  cherry-pick.{0,120}(?:fail|non-zero|conflict)
syntax-error: a file does not parse
  \b(?:syntaxerror|indentationerror|taberror|parseerror|parsererror|jsondecodeerror)\b|syntax error
  unexpected (?:token|end of (?:input|json))|parse error|unterminated string|unbound variable
  invalid workflow file|yaml: line \d|mapping values are not allowed|mapping key .{0,40}already def
  (?:invalid|malformed) (?:json|yaml|toml|xml)\b|is not a valid (?:attribute|key|property|option)
compile-error: the code does not compile
  ^\S{1,200}[:(]\d{1,9}(?:[:,]\d{1,9})?[):]? ?:? ?(?:fatal )?error\b|: error: .{0,80}undeclared
  \berror (?:ts|cs|c|lnk|msb|fs|bc)\d{3,5}\b|error\[e\d{4}\]|undefined (?:reference to|symbol)
  \bcompil\w{0,20} (?:error(?!: killed)|fail)|(?:fail\w{0,20}|unable|error|could not) (?:to )?compil
  cannot find symbol|unresolved (?:reference|import)|incompatible types|no matching function
  linker command failed|\bld returned \d|\bld: cannot find|fatal error: .{1,80}no such file
  \.h(?:pp)?: no such file|(?:failed|failure|error) (?:to )?build(?:ing)? (?:wheel|gem native)
  module not found: error|invalid target release
missing-module: something that the code imports is missing
  \b(?:importerror|modulenotfounderror|noclassdeffounderror|classnotfoundexception)\b
  no module named|cannot (?:find|load) (?:module|such file|package)|cannot import name
  uninitialized constant|package \S{1,120} (?:does not exist|is not in)|no required module provides
  cannot open shared object file|library not loaded|dll load failed
code-exception: the code raised an error of its own
  \b(?:key|attribute|type|name|value|index|unboundlocal|nomethod|argument|reference|range|frozen
    |zerodivision|notimplemented|unicodedecode|unicodeencode|recursion|duplicateopt
    |config)error\b(?!: (?:failed to fetch|fetch failed|networkerror))
  \b(?:nullpointer|illegalargument|classcast|indexoutofbounds|arithmetic|numberformat)\w{0,20}\b
  nosuch(?:method|field)error|unexpected keyword argument|unknown keyword:|positional arguments?\b
  undefined (?:local variable|method)|has no attribute|nil pointer dereference|is not a function\b
  is (?:not defined|undefined)\b|index out of (?:range|bounds)|beancreation
assertion: a test's expectation was not met
  \b(?:assertion(?:failed)?error|assertionfailure|comparisonfailure|mismatcherror)\b|did not raise\b
  expected exception\b|assertion .{0,80}failed|expected:? ?<.{0,200}but was
  expected .{0,200}\bbut (?:got|was|found)|^\s{0,20}expected: |expect\(.{0,80}\)\.(?:not\.)?to
  snapshots? (?:failed|obsolete)|does not match (?:the )?(?:snapshot|stored|expected|one gen)
  do not match those expected
lint: a linter or formatter objects
  \boffenses? detected|would (?:be )?reformat|code style issues
  [1-9]\d{0,5} problems? \(\d{1,9} error
  \b(?:checkstyle|pmd|spotbugs|findbugs|spotless|detekt|ktlint)\w{0,20}.{0,60}(?:fail|violat|error
    |report)
  found [1-9]\d{0,5} (?:errors? in|lint|style|type)|[1-9]\d{0,5} lint(?:ing)? errors?
  ^>{1,5} lint for|(?:were|was) modified by this hook|is not (?:properly )?formatted
  your code has been rated|^\S{1,200}:\d{1,9}(?::\d{1,9})?:? [ewfcrdnsb]\d{3,4}\b
  violations?(?:\(s\))? found|clippy::
usage-error: a command was called in a way that it does not know
  invalid (?:option|choice|argument|flag|value for)|unrecognized (?:arguments?|option)
  unknown (?:option|flag|command|argument|environment)|no such option|option .{1,60}not recognized
  command not found|is not recognized as an internal|missing required (?:argument|option|input)
  input required and not supplied|no such (?:command|target|task)|no rule to make target
  task .{0,60}not found in (?:root )?project|missing script
dependency-conflict: the declared dependencies do not fit together
  versionconflict|resolutionimpossible|eresolve|conflicting (?:dependencies|requirements)
  peer dep\w{0,20}.{0,30}(?:violat|conflict|missing)|unable to resolve dependency tree|ebadengine
  lock ?file.{0,60}(?:out of date|satisfy|problem|out of sync|updated)|problems? with the lock ?file
  requires? (?:a different )?python|unsupported (?:engine|class file)|version solving failed
  failed to select a version|do not match the hashes|dependency verification failed|go\.sum
  verifying .{0,120}checksum mismatch|no matching version found|distutils installed project
  conflicts with (?:file|attempted)|but your gemfile|nothing provides .{1,80} needed
  unmet dependencies
refused: an account or a policy does not allow it
  permission denied \(publickey|resource not accessible by integration|bad credentials
  authentication (?:failed|required)|access denied|not authorized to|\bunauthorized\b|accessdenied
  could not load credentials|credentials could not be loaded|hook declined|invalid (?:api )?token
  returned error: 40[134]|status code:? 40[134]\b(?!.{0,80}rate limit)|insufficient permissions?
  repository not found|permission to \S{1,120} denied|blocked by policy|policy violation
missing-version: the named version, tag or package does not exist
  manifest (?:for .{0,120}not found|unknown)|unable to (?:find version|locate package)
  pathspec .{0,80}did not match|couldn.t find remote ref|not a valid object name|gemnotfound
  unknown revision|reference is not a tree|no package .{0,60}available|\be404\b|could not find gem
database-schema: schema and code disagree
  pg::(?:undefined|duplicate|invalid|check|notnull|foreign|unique|syntax|dependent|datatype|ambig)
  relation .{0,80}does not exist|no such (?:table|column)|duplicate (?:column|key value|entry)
  unknown column|constraint failed|integrityerror|programmingerror|pendingmigration|multiple heads
  table .{1,80}(?:doesn.t|does not) exist|conflicting migrations
quality-gate: a threshold of quality was missed
  coverage (?:failure|threshold|check failed)|less than fail-under|quality gate.{0,30}fail
  coverage.{0,60}(?:below|does not meet|not met)|[1-9]\d{0,5} (?:high|critical).{0,20}vulnerabilit
  leaks found: [1-9]|(?:is|are) (?:out ?dated|not up[ -]to[ -]date)
""",
)

INFRASTRUCTURE = rules(
    "transient",
    r"""
rate-limited: a service asked for fewer requests
  rate[ -]?limit(?:ed|ing)|rate limit.{0,40}(?:exceeded|hit|reached)
  ratelimit\w{0,20}(?:exception|error)|(?:exceeded|hit|reached|by).{0,40}rate[ -]limit
  too ?many ?requests|\b(?:http|status|code|error)\W{0,12}429\b|\be429\b|\bslow ?down:
  throttl(?:ed|ing(?:exception)?)\b|requestlimitexceeded|\brate exceeded|abuse detection
dns: a host name was not resolved
  (?:could(?: not|n.t)|cannot|can.t|unable to|failed to) resolve (?:the )?(?:host|proxy|addr|name)
  failure in name resolution|name or service not known|nodename nor servname|\benotfound\b|eai_again
  getaddrinfo|unknownhost|no address associated with|temporary failure resolving|no such host\b
  name resolution (?:failed|failure|error)|server misbehaving|\bunknown host\b
  \bdns (?:lookup|resolution|query|problem|error|server)|name_not_resolved|servfail
tls: a secure connection broke off
  (?:tls|ssl)[ _]?handshake|ssl_connect|ssl connection|ssl_error_syscall
  gnutls(?:_hand| \w{1,30} err)|tls (?:packet|connection)|ssl_read
  eof (?:while reading|occurred in violation)|ssleoferror|ssl(?:handshake|protocol)exception
  handshake (?:operation |has )?(?:failed|timed out|did not)|terminated the handshake
  sslerror.{0,40}(?:eof|timed out|max retries)|ssl syscall
connection: a connection failed or broke
  connection.{0,12} (?:reset|refused|aborted|timed out|closed|broken|lost|died|terminated|dropped)
  connection (?:failed|failure|error\b|unexpectedly|attempt failed)|broken pipe|\bhost is down
  : eof$|execute (?:post|get|put|patch)\b|remote host closed|lost (?:the )?connection
  \beconn(?:reset|refused|aborted)\b|\be(?:socket)?timedout\b|\bepipe\b|\be(?:host|net)unreach\b
  \beaddrnotavail\b|cannot assign requested address|socket hang ?up
  socket (?:is |was )?(?:timeout|closed|error|exception)
  no (?:viable .{0,20})?route\b.{0,20}(?:to|found)
  (?:network|host|cluster|server|peer|mirror|registry) (?:is |was |are )?(?:un|not )reachable
  network (?:error|failure|timeout|is down|problem)|dial (?:tcp|unix|udp)|i/o timeout
  (?:fail\w{0,20}|unable|could(?: not|n.t)|cannot|can.t|error) (?:to )?connect(?:ing)?\b
  (?:fail\w{0,20}|unable|could(?: not|n.t)|cannot) (?:to )?(?:open|establish|get
    |make) .{0,20}connection
  connection to .{0,80}(?:closed|lost|failed|timed out)|trouble with your network|no response from
  err_(?:connection|network|internet|timed_out|empty_response)|connect(?:ion)? timeout|hung up
  no (?:connected|healthy|live|reachable|active) .{0,20}(?:servers?|hosts?|brokers?|nodes?|upstream)
  (?:is|are|was|has|did) ?(?:not|n.t) (?:respond|answer)(?:ing|ed)?\b|proxyerror|unresponsive
  \b(?:request|tcp|network|connection|gateway|socket|ssh|proxy) timeout\b|timeout on https?:
  packet_write|network connectivity|connectionloss|\btns:|\[errno (?:32|99|10[0-4]|11[0-3]|-[235])\]
  (?:receiving|sending|reading) (?:data )?.{0,20}the peer
client-exception: a client library gave up on its server
  \b(?:read|connect|open|write|pool|socket|gateway|http\w{0,20})timeout(?:error|exception)?\b
  \b(?:newconnection|maxretry|incompleteread|remotedisconnected|chunkedencoding|clientconnector
    |serverdisconnected|connectionreset|brokenpipe)(?:error)?\b
  connectionpool\(|cannotconnecterror|networkerror\b
  (?:requests|urllib3|httpx|aiohttp|redis|kombu|amqp)\.\S{0,40}(?:connectionerror|timeout)
  java\.net\.\w{0,20}(?:connect|socket|noroute|protocolex)|interruptedioexception|nohttpresponse
  remotefetcher|bundler::httperror|condahttperror|bad ?status ?line|http protocol error
  <?urlopen error|errno::e(?:conn|timedout|host)|execution expired|premature end of|stream error
  goaway|(?:unexpected|early) eof|client\.timeout|deadline ?exceeded|request canceled while
  max(?:imum)? (?:retries|attempts|number of retries) (?:exceeded|reached)
http-5xx: a server failed to answer
  \b50[0-4]\W{1,3}(?:internal|bad|service|gateway|server|response|error)
  \b(?:http(?:/[\d.]{1,3})?|status(?: ?code)?|code|error|response|responded with)\W{1,6}(?:code[ ]
    |error |status )?5(?:0[0-478]|2\d)\b
  status code .{0,40}: 50[0-4]\b|internal server error|bad gateway|gateway time-?out
  serviceunavailable|backend fetch failed
  (?:service|server|site|host|registry|temporarily|currently) (?:un|not )available\b
  (?:is|are) unavailable\b|unable to handle this request|due to (?:high )?load
  (?:is|server|currently) overloaded|under maintenance|\be50[0-4]\b|server (?:is )?(?:too )?busy
  insufficient storage
git-transport: git could not talk to its remote
  \brpc failed|remote end hung up|fetch-pack|index-pack (?:failed|died)|expected flush after
  unexpected disconnect while reading|could not read from remote|unable to access .?https?:
  \bgit\b.{0,60}\b(?:fetch|clone|pull|ls-remote|submodule|update).{0,120}(?:timed? ?out|\b128\b)
  timeoutexpired.{0,30}\bgit\b|cannot lock ref|index\.lock.{0,4}file exists|shallow file has changed
  error (?:cloning|fetching) remote|fatal: (?:read|protocol) error|bad (?:line length|pack header)
  (?:unable|fail\w{0,20}) to (?:initiali[sz]e|update|sync|prepare|check ?out) .{0,20}\brepo(?:s
    |sitory)?\b
  max attempts reached|inflate: data stream error|gitaly.{0,40}fail
ssh: a remote shell broke off
  (?:ssh|kex)_exchange_identification|ssh: connect to host|ssh encountered an unknown|sshexception
  protocol banner|sshtimeout|ssh (?:connection |session )?(?:error|timed out|failed|timeout)
  mux_client|rsync error|rsync:.{0,80}(?:unexpectedly|closed)|privilege escalation prompt
package-mirror: a package mirror or registry did not deliver
  hash sum mismatch|all mirrors were tried|no more mirrors|mirror sync in progress
  (?:fail\w{0,20}|error|cannot|retrieve|prepare).{0,40}(?:repomd|repodata|metalink|mirrorlist
    |index base)
  some index files failed|cannot find a valid baseurl|spurious network error|curl error
  (?:file has )?unexpected size|does not match intended|release file.{0,60}(?:expired|not valid yet)
  curl: \((?:5|6|7|16|18|28|35|52|55|56|92)\)|could not transfer artifact|could not (?:get|head) '
  \[errno (?:14|256)\]|clearsigned file|trying (?:an)?other mirror|^\[mirror\]|cannot open:? https?:
  synchronize cache|cb\(\) never called|keyserver.{0,40}(?:fail|timed|error)
  fail\w{0,20} to update apt
broken-download: what was downloaded is damaged
  (?:bad|wrong|incorrect|invalid) (?:md5|sha\d{0,3}|hash|checksum|crc)|\bbad crc|badzipfile
  (?:md5|sha\d{1,3}|hash|checksum|digest|crc)s?(?: \w{1,30})? (?:mismatch|did not match|differs
    |error)
  unexpected end of (?:file|archive|data|stream)|not in gzip format|unexpected eof in archive
  incomplete frame|error unpacking|problem with mergelist
  fail\w{0,20} to (?:unpack|extract|decompress|untar)|truncated (?:file|archive|download|tar)
  end-of-central-directory|file is not a zip file
container-registry: images, actions or artifacts could not be moved
  (?:error|failed|failure|unable)\b.{0,30}\bpull(?:ing)?\b|pull(?:ing)? .{0,20}fail|errimagepull
  imagepullbackoff|httpreadseeker|failed to (?:do request|copy:|register layer)|error parsing http
  no such container|devicemapper: |creating this cache|cannot connect to the docker
  is the docker daemon running|docker daemon.{0,30}(?:not running|die)
  (?:fail\w{0,20}|error|unable).{0,30}\b(?:artifact|cache)s?\b.{0,40}(?:service|5\d\d)
  (?:getcacheentry|reservecache|commitcache|createartifact|finalizeartifact)\w{0,20} failed
contended: another process held what the job needed
  (?:dpkg|apt|yum|dnf|rpm|lists|frontend|database).{0,60}\blocked\b|could not (?:get|acquire) lock
  (?:unable|fail\w{0,20}|could not|cannot|waiting) (?:to )?(?:lock|acquir|reserv|obtain)\w{0,20}
  \blocked by (?:another|host|:)|holding the (?:yum|apt|dnf) lock|timeout waiting to lock
  resource busy|rpmdb.{0,60}(?:fail|died)|text file busy|address (?:already )?in use|eaddrinuse
  port is already allocated|device is busy|resource temporarily unavailable|\beagain\b|\bebusy\b
  another operation .{0,30}in progress
exhausted-machine: the machine ran out of something, or broke
  no space left|\benospc\b|insufficient (?:disk |free )?space
  not enough (?:disk |free )?(?:space|mem)|disk (?:is )?(?:full|quota exceeded)|out of disk|low disk
  cannot allocate memory|\benomem\b|read-only file ?system|file ?system.{0,20}read-only
  input/output error|stale (?:nfs )?file handle|oom-?killer|memory exhausted|out of memory: kill
  killed process \d|kernel panic|soft lockup|transport endpoint|daemon disappeared
  internal compiler error: killed|(?:fork|spawn)\w{0,20}:? .{0,20}(?:failed|cannot|unable|retry)
  ipmi.{0,40}(?:fail|error|timed)|nvml error|fail\w{0,20}.{0,30}nvml
  \w{1,20}d (?:daemon )?(?:has )?died\b|uncorrectable ecc|\bnccl\b.{0,60}(?:fail|error|timeout)
  nvidia-smi has failed|no (?:cuda|hip|xpu) (?:gpus|devices) (?:are )?available
provisioning: the cloud could not make what the job asked for
  no valid host|fail\w{0,20} to allocate (?:the )?(?:network|memory|resource|port|address)
  insufficientinstancecapacity|insufficient (?:cpu|memory|capacity|resources|quota)
  not enough (?:hosts|capacity|resources|quota)|failedscheduling|out of (?:host )?capacity
  (?:fail\w{0,20}|error|unable|could not) (?:to )?(?:creat|launch|boot|start|spawn|provision
    |delet)\w{0,20}[ ](?:an? |the )?(?:\w{1,30} )?(?:stack|instance|vm|server|node|cluster|volume
    |machine|emulator)\b
  (?:node|instance|vm|server|stack|cluster|machine) (?:launch|creation|boot|provisioning) (?:fail
    |timed|err)
  introspection.{0,30}(?:failed|timed out)|quota\b.{0,40}\bexceeded|no server suitable
  etcdserver:[ ]|error dialing backend
database-not-ready: a database or service was not ready
  database system is (?:starting up|shutting down|in recovery)|too many (?:connections|clients)
  server has gone away|connection slots|pg::(?:connectionbad|unabletosend|adminshutdown)|clusterdown
  lock wait timeout|deadlock (?:found|detected)|serialization failure|loading redis|nodedown
  could not fetch cluster|grpc::unavailable|code = unavailable|statuscode\.unavailable
  leader changed
browser-or-device: the browser or device under the test went away
  (?:chrome|firefox|browser|driver|tab|emulator|simulator) (?:has )?(?:crashed|not reachable|died)
  (?:chrome|firefox|browser|driver|emulator|simulator|xvfb) (?:failed|timed out|did not|unable)
  devtoolsactiveport|not connected to devtools|not captured in|because no message in \d
  target closed|device (?:is )?offline|\badb: .{0,40}(?:not found|offline)|\brunner hung
  shellcommandunresponsive|never finished bootstrapping|lost connection with
could-not-fetch: something remote could not be fetched
  (?:fail\w{0,20}|unable|could(?: not|n.t)|cannot|can.t)(?: to| in| while| when)? (?:download|fetch
    |retriev|upload|contact|reach|clon|receiv|communicat)(?:e|es|ed|ing
    |s)?\b(?!.{0,200}(?:not found|404|deni))
  errors? (?:while |when |during |in |trying to )?(?:download|fetch|retriev|upload|clon|receiv
    |contact)(?:ing)?\b
  \b(?:download|fetch|upload|clone)(?:ing)?\b.{0,60}\bfailed\b(?!.{0,200}(?:not found|404|denied))
  ^e: failed to fetch
""",
)

FAILED_TESTS = rules(
    "persistent",
    r"""
test-failed: a test failed
  ^\s{0,20}(?:---? )?fail(?:ed)?[: ]\s{0,20}(?!to\b|retry|- retry)[\w/.\[]|\bfailed \S{1,200}::
  \w\.\w{1,80}(?:\(\))? failed$|> .{1,120} failed\b|panicked at|failure/error:
  (?<![.\d])[1-9]\d{0,5} (?:tests? |specs? |examples?, )?(?:failed|failures?)\b
  there are test failures|tests run:.{0,40}(?:failures|errors): [1-9]
  \[error\] {2,4}\w{1,80}\.\w{1,80}:\d|^\s{0,8}● .{1,80} ›
""",
)

WEAK_SIGNS = (
    *rules(
        "persistent",
        r"""
not-found: something that the job expects is not there
  no such file or directory|permission denied|\b404\b|could not find|not found\b|does not exist
  no (?:matching )?distributions?\b|could not resolve (?:all|dep)|is not valid|(?:not |un)supported
""",
    ),
    *rules(
        "transient",
        r"""
time-ran-out: the time ran out and nothing says why
  timed[ _-]?out|\btime-?out\b.{0,20}\b(?:after|waiting|exceeded|expired|reached|while|of|error)
  (?:time-?out|time limit|deadline).{0,20}(?:exceeded|expired|reached|hit)|took longer than
  timeout(?:error|exception|expired)\b|::timeout|exceeded the maximum (?:execution )?time
  within the (?:required|allott?ed|given) time|exceeded.{0,20} wait time
  did not (?:connect|come up|boot|reach)\b|gave up waiting|giving up|watchdog|stalled
  not (?:ready|become \w{1,20}|come up) (?:after|within|in time)
  no output (?:has been |was )?received
killed: the process was ended from outside
  exit(?:ed)?(?:[ _](?:with )?(?:code|status|value))?\W{0,3}(?:137|143)\b|\bkilled(?:  |$)
  \bsig(?:term|kill)\b|signal (?:9|15)\b|forked vm terminated|worker .{0,20}crashed
  interruptedexception|operation was cancell?ed|was (?:aborted|interrupted)|\baborted$
called-passing: the message itself calls the failure passing
  try .{0,20}again (?:later|in |shortly|soon)|(?:please )?retry (?:later|after)|\bretries left
  \bflak(?:y|e|es|iness)\b|after \d{1,3} (?:attempts|retries|tries)|retries exhausted
  all attempts failed|intermittent
  (?:transient|temporary|infra\w{0,20}) (?:error|failure|problem|issue)|system failure|unavailable\b
  (?:un|not )reachable\b|went offline|disconnected\b|staleelementreference|\bmirrors?\b.{0,40}fail
  \bgit.{0,3} failed with (?:exit )?(?:code|status) 128\b|\bnot provisioned
""",
    ),
)

BUILT_IN = (*MACHINE_LOST, *CODE_FAULTS, *INFRASTRUCTURE, *FAILED_TESTS, *WEAK_SIGNS)
