"""RocketMQ's settings that no setting of ours replaces one to one, each with the reason.

A name with a star stands for a family: RocketMQ adds such settings with every version.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Settings of RocketMQ that are left out for one reason."""

    reason: str
    #: Names separated by blanks; a star stands for any characters.
    names: str
    #: The setting of ours to set by hand, if there is one.
    instead: str = ""

    def matches(self, key: str) -> bool:
        """Whether this key of RocketMQ is one of these settings."""
        return any(fnmatchcase(key, name) for name in self.names.split())


#: The first row that matches counts.
LEFT_OUT: tuple[LeftOut, ...] = (
    LeftOut(
        "pass the directory as `--data-dir`: a broker keeps all of its files in one directory",
        "storePathRootDir storePathCommitLog storePathConsumeQueue storePathIndex storeCheckpoint"
        " abortFile readOnlyCommitLogStorePaths",
    ),
    LeftOut(
        "a message body has at most 4 MiB, RocketMQ's default, and no setting changes that",
        "maxMessageSize",
    ),
    LeftOut(
        "transactional messages are the purpose of the broker, so it never rejects them",
        "rejectTransactionMessage",
    ),
    LeftOut(
        "a setting of 3.x, which RocketMQ 4.0 and later ignore; use"
        " `transaction.check_after_ms` and `transaction.check_interval_ms`",
        "checkTransactionMessageAtleastInterval checkTransactionMessageTimerInterval",
    ),
    LeftOut(
        "a decision is one record in the log, so there are no op messages to collect",
        "transactionOpBatchInterval transactionOpMsgMaxSize transactionMetricFlushInterval",
    ),
    LeftOut(
        "EscrowMQ has no replicas: a broker is one process with one store",
        "brokerRole brokerId brokerIP2 ha* slaveReadEnable slaveTimeout totalReplicas"
        " inSyncReplicas minInSyncReplicas allAckInSyncStateSet enableAutoInSyncReplicas"
        " maxHaTransferByteInSecond maxSlaveResendLength offsetCheckInSlave syncFromLastFile"
        " asyncLearner duplicationEnable syncMasterFlushOffsetWhenStartup enableSlaveActingMaster"
        " enableRemoteEscape skipPreOnline"
        " replicasPerDiskPartition syncBrokerMemberGroupPeriod lockInStrictMode maxChecksumRange"
        " forwardTimeout storePathEpochFile storePathBrokerIdentity",
    ),
    LeftOut(
        "EscrowMQ has neither a controller nor DLedger",
        "enableControllerMode controllerAddr controllerHeartBeatTimeoutMills brokerElectionPriority"
        " fetchControllerAddrByDnsLookup syncControllerMetadataPeriod syncBrokerMetadataPeriod"
        " checkSyncStateSetPeriod enableDLegerCommitLog dLeger* storePathDLedgerCommitLog"
        " preferredLeaderId enableBatchPush",
    ),
    LeftOut(
        "a process runs one broker, so there is no broker container",
        "inBrokerContainer brokerContainer brokerConfigPaths",
    ),
    LeftOut(
        "the broker is its own name server, so it registers nowhere",
        "rmqAddressServerDomain rmqAddressServerSubGroup fetchNameSrvAddrByDnsLookup"
        " fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval updateNameServerAddrPeriod"
        " registerNameServerPeriod registerBrokerTimeoutMills compressedRegister forceRegister"
        " compatibleWithOldNameSrv enableSingleTopicRegister enableSplitRegistration"
        " splitRegistrationSize enableSplitMetadata splitMetadataSize brokerHeartbeatInterval"
        " sendHeartbeatTimeoutMillis brokerNotActiveTimeoutMillis scanAvailableNameSrv"
        " loadBalancePollNameServerInterval cleanOfflineBrokerInterval",
    ),
    LeftOut(
        "one event loop serves all clients, so there are no thread pools",
        "*ThreadPoolNums *ThreadPoolQueueCapacity endTransactionPoolQueueCapacity"
        " serverWorkerThreads serverSelectorThreads serverCallbackExecutorThreads"
        " clientWorkerThreads clientCallbackExecutorThreads asyncSendEnable"
        " maxAsyncPutMessageRequests",
    ),
    LeftOut(
        "a full inbox refuses a request at once with `inbox_full`, and clients retry it",
        "waitTimeMillsIn* brokerFastFailureEnable osPageCacheBusyTimeOutMills"
        " enableNetWorkFlowControl startAcceptSendRequestTimeStamp disappearTimeAfterStart",
    ),
    LeftOut(
        "requests that wait at the same time share one flush, and no timer delays it",
        "flushIntervalCommitLog flushCommitLog* commitIntervalCommitLog commitCommitLog*"
        " syncFlushTimeout putMessageTimeout wakeCommitWhenPutMessage wakeFlushWhenPutMessage"
        " enableRunningFlagsInFlush maxCommitJitter",
    ),
    LeftOut(
        "the store writes its log with ordinary writes, not with mapped files",
        "transientStorePool* fastFailIfNoBufferInStorePool warmMapedFileEnable"
        " flushLeastPagesWhenWarmMapedFile mappedFileSwapEnable commitLogForceSwapMapInterval"
        " commitLogSwapMap* logicQueueForceSwapMapInterval logicQueueSwapMap*"
        " cleanSwapedMapInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval"
        " writeWithoutMmap transferMsgByHeap sharedByteBufferNum",
    ),
    LeftOut(
        "one writer appends to the log, so there are no locks to choose",
        "useReentrantLockWhenPutMessage useABSLock spinLockCollisionRetreatOptimalDegree"
        " topicQueueLockNum debugLockEnable",
    ),
    LeftOut(
        "queue files have a fixed layout, and recovery rebuilds them from the log",
        "mappedFileSizeConsumeQueue mapedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt"
        " mapperFileSizeBatchConsumeQueue enableConsumeQueueExt bitMapLengthConsumeQueueExt"
        " flushIntervalConsumeQueue flushConsumeQueue* putConsumeQueueDataByFileChannel"
        " maxConsumeQueueScan searchBcqByCacheEnable dispatchCq* dispatchFromSenderThread"
        " correctLogicMinOffset* travelCqFileNumWhenGetMessage enableAsyncReput"
        " recheckReputOffsetFromCq readUnCommitted sampleCountThreshold sampleSteps"
        " estimateAccumulation",
    ),
    LeftOut(
        "recovery replays the log from the last checkpoint and checks every frame",
        "recoverConcurrently maxRecoveryCommitlogFiles checkCRCOnRecover enabledAppendPropCRC"
        " forceVerifyPropCRC enableAcceleratedRecovery enableBuildConsumeQueueConcurrently"
        " enableLogConsumeQueueRepeatedlyBuildWhenRecover checkCommitLogOffsetOnRecover"
        " commitLogRecoverMaxNum",
    ),
    LeftOut(
        "retention deletes old segments in small steps all day",
        "deleteWhen deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax"
        " maxBatchDeleteFilesNum cleanResourceInterval cleanFileForciblyEnable"
        " enableCleanExpiredOffset",
    ),
    LeftOut(
        "set `store.free_bytes_min` by hand: it counts bytes that stay free, not the percentage"
        " in use",
        "diskMaxUsedSpaceRatio diskSpaceWarningLevelRatio diskSpaceCleanForciblyRatio"
        " logicalDiskSpaceCleanForciblyThreshold diskFallRecorded",
        "store.free_bytes_min",
    ),
    LeftOut(
        "the broker always indexes messages by key",
        "messageIndexEnable messageIndexSafe maxHashSlotNum maxIndexNum putMsgIndexHightWater"
        " defaultQueryMaxNum indexFileReadEnable indexFileWriteEnable",
    ),
    LeftOut(
        "delayed messages are always on, and a message can wait for ten years",
        "timer* mappedFileSizeTimerLog maxDelayTime enableScheduleAsyncDeliver"
        " enableScheduleMessageStats scheduleAsyncDeliver* flushDelayOffsetInterval"
        " delayOffsetUpdateVersionStep appendTopicForTimerDeleteKey",
    ),
    LeftOut(
        "senders can always recall their delayed messages",
        "recallMessageEnable allowRecallWhenBrokerNotWriteable",
    ),
    LeftOut(
        "a pull that finds nothing always waits for new messages",
        "longPollingEnable shortPollingTimeMills litePullMessageEnable rejectPullConsumerEnable",
    ),
    LeftOut(
        "the client's request and a fixed limit of the broker determine the size of an answer",
        "maxTransferBytesOnMessage* maxTransferCountOnMessage* accessMessageInMemory*"
        " pullBatchMaxMessageCount maxMsgsNumBatch maxTopicLength autoMessageVersionOnTopicLen"
        " recordGetMessageResult",
    ),
    LeftOut(
        "EscrowMQ's pop model has no check points and no revive topic",
        "pop* *Pop* revive* appendAckAsync appendCkAsync enableRetryTopicV2"
        " enableSkipLongAwaitingAck skipWhenCKRePutReachMaxTimes defaultMessageRequestMode"
        " serverLoadBalancerEnable serverLoadBalancerEnabled enableTransparentRetry"
        " useSeparateRetryQueue useMessageFilterForNotification maxMessageFilterNumForNotification",
    ),
    LeftOut(
        "consumers filter by tags only",
        "enablePropertyFilter enableCalcFilterBitMap expectConsumerNumUseFilter filterSupportRetry"
        " maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterServerNums maxFilterMessageSize",
    ),
    LeftOut(
        "`access.mode` turns access control on; `escrowmq user create` and `escrowmq acl grant`"
        " make users and policies",
        "aclEnable aclCache* auth* initAuthenticationUser innerClientAuthenticationCredentials"
        " migrateAuthFromV1Enabled stateful* userCache* accessKey secretKey",
    ),
    LeftOut("`tls.mode` and the files beside it say how the broker uses TLS", "useTLS"),
    LeftOut(
        "create the topic `RMQ_SYS_TRACE_TOPIC` for traces; `txn show` prints every step of a"
        " transaction",
        "traceTopicEnable msgTraceTopicName traceOn regionId",
    ),
    LeftOut(
        "set `broker.http_port` by hand: `/metrics` is for Prometheus, with RocketMQ's names",
        "metricsExporterType metricsPromExporterPort metricsPromExporterHost metricsLabel"
        " metricsInDelta metricsOtelCardinalityLimit metricsGrpc* metricGrpc* metricLogging*"
        " enable*Metrics metricsExportBatchMaxDataPoints",
        "broker.http_port",
    ),
    LeftOut(
        "the counters are always on, and `/metrics` shows them",
        "accountStats* commercial* enableDetailStat autoDeleteUnusedStats enableLmqStats"
        " maxStatsIdleTimeInMinutes printChannelGroups printChannelGroupsMinNum isolateLogEnable"
        " highSpeedMode",
    ),
    LeftOut(
        "the broker uses asyncio instead of Netty; its limits are in the section `[broker]`",
        "serverSocket* serverAsyncSemaphoreValue serverOnewaySemaphoreValue"
        " serverNettyWorkerGroupEnable serverPooledByteBufAllocatorEnable useEpollNativeSelector"
        " writeBufferHighWaterMark writeBufferLowWaterMark enableShutdownGracefully"
        " shutdownWaitTimeSeconds clientAsyncSemaphoreValue clientOnewaySemaphoreValue"
        " clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientSocket*"
        " clientPooledByteBufAllocatorEnable channelNotActiveInterval connectTimeoutMillis"
        " socksProxyConfig disableCallbackExecutor disableNettyWorkerGroup"
        " maxReconnectIntervalTimeSeconds enableReconnectForGoAway",
    ),
    LeftOut(
        "the broker does not limit reads of old messages",
        "cold* cgColdReadThreshold globalColdReadThreshold usePIDColdCtrStrategy"
        " dataReadAheadEnable disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold",
    ),
    LeftOut(
        "the store has its own files: no RocksDB, no compacted topics, no light queues, no tiers;"
        " the pipeline archives topics to the lake",
        "*RocksDB* *Rocksdb* rocksdb* combine* memTable* batchWriteKvCqSize storeType"
        " bottomMostCompressionTypeForConsumeQueueStore enableCompaction compaction*"
        " maxOffsetMapSize enableLmq enableMultiDispatch maxLmqConsumeQueueNum tiered* objectStore*"
        " readAhead* messageStorePlugIn commitLogRolling* transWriteOriginTransHalfEnable",
    ),
    LeftOut(
        "the broker writes consumer offsets on its own schedule",
        "flushConsumerOffset* consumerOffsetUpdateVersionStep useServerSideResetOffset"
        " enableBroadcastOffsetStore broadcastOffset* persistConsumerOffsetIncrementally",
    ),
    LeftOut(
        "the broker forgets a client when its connection ends or its heartbeats stop",
        "channelExpiredTimeout subscriptionExpiredTimeout enableRegisterProducer"
        " enableFastChannelEventProcess notifyConsumerIdsChangedEnable realTimeNotifyConsumerChange"
        " useStaticSubscription",
    ),
    LeftOut(
        "topics have permissions, brokers have none: `mqadmin updateTopicPerm` changes one topic",
        "brokerPermission",
    ),
    LeftOut(
        "EscrowMQ does not have the topics and groups that RocketMQ creates for itself",
        "brokerTopicEnable clusterTopicEnable enableCreateSysGroup"
        " validateSystemTopicWhenUpdateTopic clearRetryTopicWhenDeleteTopic",
    ),
    LeftOut("EscrowMQ does not have RocketMQ's reply messages", "storeReplyMessageEnable"),
    LeftOut(
        "EscrowMQ has neither lite topics nor message priorities",
        "lite* enableLiteEventMode enableLmqQuota maxLiteSubscriptionCount minLiteTTl"
        " maxClientEventCount priorityOrderAsc",
    ),
    LeftOut(
        "set `topics.enforce_type` by hand: with it, the broker refuses messages of other types",
        "enableMixedMessageType",
        "topics.enforce_type",
    ),
    LeftOut(
        "it is about RocketMQ's own installation and files",
        "rocketmqHome brokerConfigPath configBlackList configManagerVersion configName clusterName",
    ),
)


def left_out(key: str) -> LeftOut | None:
    """Return the row of a setting that is left out, or None."""
    return next((row for row in LEFT_OUT if row.matches(key)), None)
